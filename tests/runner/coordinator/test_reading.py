"""Tests that agents' messages arrive at the coordinator with everything that the agent observed."""

import json
from dataclasses import asdict

import pytest

from headway.runner.coordinator.causes import Ended
from headway.runner.coordinator.events import Exited, Probed, RanksUndead, Recorded
from headway.runner.coordinator.reading import event_of
from headway.runner.health.collectives import Collective, CollectiveOperation
from headway.runner.health.watch import Probe
from headway.runner.health.xid import Xid
from headway.runner.messages import ChannelError, Message

LOCKED = Probe("S", 1.5, 4096, ("train.py:7 step", "train.py:20 main"), "compute", "futex_do_wait")


def test_a_probe_of_a_process_arrives_complete() -> None:
    body = json.loads(json.dumps({"what": "probe", "ranks": {3: asdict(LOCKED)}}))
    assert event_of(Message("r", 2, 1, 0, 5, "evidence", body)) == Probed(1, 2, {3: LOCKED})


def test_a_supervisors_report_of_undying_ranks_is_validated() -> None:
    body = {"what": "undead", "workers": [{"rank": "3", "state": "D"}, {"rank": 4, "state": None}]}
    assert event_of(Message("r", 2, 1, 0, 5, "evidence", body)) == RanksUndead(1, 2, {3: "D", 4: ""})
    for broken in ({}, {"workers": 3}, {"workers": [{"state": "D"}]}):
        with pytest.raises(ChannelError):
            event_of(Message("r", 2, 1, 0, 5, "evidence", {"what": "undead", **broken}))


def test_a_flight_recorders_entries_arrive_complete() -> None:
    recent = (CollectiveOperation(7, "all_reduce of 4 elements", "0f"),)
    entered = (
        Collective("0", "default_pg", 8, "all_reduce(Float[4])", False, 7, recent, on_device=True),
        Collective("3", "", 2, "barrier()", True),
    )
    body = json.loads(json.dumps({"what": "recorded", "ranks": {3: [asdict(each) for each in entered]}, "said": None}))
    assert event_of(Message("r", 2, 1, 0, 5, "evidence", body)) == Recorded(1, 2, {3: entered}, None)
    said = {"what": "recorded", "ranks": {}, "said": "INCOMPLETE"}
    assert event_of(Message("r", 2, 1, 0, 5, "evidence", said)) == Recorded(1, 2, {}, "INCOMPLETE")


def test_device_reports_arrive_with_a_ranks_exit() -> None:
    facts = {"rank": 3, "code": -9, "asked": True, "oom": False, "how": "killed by SIGKILL", "step": 7}
    body = {"exits": [{**facts, "xids": [[79, "PCI:0000:3b:00", "lost", True]]}, {**facts, "rank": 2}]}
    ends = [Ended(rank, 1, -9, "killed by SIGKILL", True, 7) for rank in (3, 2)]
    with_report = ends[0]._replace(xids=(Xid(79, "PCI:0000:3b:00", "lost", True),))
    assert event_of(Message("r", 2, 1, 0, 5, "exited", body)) == Exited(1, 2, (with_report, ends[1]))
