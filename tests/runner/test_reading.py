"""Agents' messages: what an agent saw is what the coordinator gets."""

import json
from dataclasses import asdict

from headway.runner.coordinator.events import Probed
from headway.runner.coordinator.reading import event_of
from headway.runner.health.watch import Probe
from headway.runner.messages import Message

LOCKED = Probe("S", 1.5, 4096, ("train.py:7 step", "train.py:20 main"), "compute", "futex_do_wait")


def test_a_look_at_a_process_arrives_with_all_that_was_seen() -> None:
    body = json.loads(json.dumps({"what": "probe", "ranks": {3: asdict(LOCKED)}}))
    assert event_of(Message("r", 2, 1, 0, 5, "evidence", body)) == Probed(1, 2, {3: LOCKED})
