"""Tests the webhook's notices over real HTTP to a server on this machine: their content, recipients and times."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headway.runner.contract import Exit, Mesh, Notify, RunConfig, Trainer, Verdict
from headway.runner.notify import SILENCE_S, TRIES, WAITING, Notifier
from tests.support.webhook import SECRET_PATH, Webhook

HANG = {
    "kind": "hang",
    "generation": 2,
    "ranks": [3, 4],
    "section": "compute",
    "silent_s": 3.2,
    "why": "rank 3 is stopped (state T)",
    "node": 1,
    "host": "n1",
    "evidence": ["attempts/0/evidence/stacks-3.txt"],
}
LOST = {"kind": "lost", "generation": 2, "node": 1, "host": "n1", "why": "its connection ended and its ranks are silent"}
FAILURE = {
    "kind": "failure",
    "generation": 3,
    "cause_kind": "user error",
    "fingerprint": "user error: ValueError",
    "cause": "exit code 1: empty sample",
    "rank": 3,
    "node": 1,
    "host": "n1",
    "step": 25,
}
STOPPED = Verdict(
    "r-1",
    0,
    3,
    "stop",
    "the same failure 3 times at step 25",
    83,
    rank=3,
    node=1,
    step=25,
    committed_step=20,
    evidence=("logs/1/3.log",),
)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    yield hook
    hook.close()


def config(notify: Notify | None = Notify("HOOK")) -> RunConfig:  # noqa: B008  frozen
    return RunConfig(2, 2, Mesh(dp_shard=4), Trainer("builtin"), "", notify=notify, run="r-1")


def notifier(address: str, **clock: Any) -> Notifier:
    return Notifier(config(), {"HOOK": address}, 0, "/runs/r-1", pause_s=0.0, **clock)


def test_a_verdict_notice_has_cause_suspect_evidence_action_and_advice(webhook: Webhook) -> None:
    said = notifier(webhook.address)
    said.journal(FAILURE)
    said.verdict(STOPPED)
    said.close()
    (notice,) = webhook.received
    text = notice.pop("text")
    assert notice == {
        "schema": "headway.notice/1",
        "run": "r-1",
        "attempt": 0,
        "generation": 3,
        "kind": "stop",
        "cause": "the same failure 3 times at step 25",
        "rank": 3,
        "node": 1,
        "host": "n1",
        "step": 25,
        "evidence": ["logs/1/3.log"],
        "done": "the attempt has ended with exit code 83; step 20 is committed",
        "to_do": "fix the cause; another start would end the same way",
        "report": "/runs/r-1",
    }
    assert text.startswith("headway run r-1: stop on n1: the same failure 3 times at step 25. Done: the attempt has ended")
    assert webhook.paths == [SECRET_PATH]


@pytest.mark.parametrize("code", [Exit.COMPLETED, Exit.PREEMPTED, Exit.SUPERSEDED])
def test_an_attempt_that_needs_no_attention_sends_no_notice(webhook: Webhook, code: Exit) -> None:
    said = notifier(webhook.address)
    said.verdict(Verdict("r-1", 0, 3, code.name.lower(), "as it should", int(code)))
    said.verdict(STOPPED)
    said.close()
    assert [notice["kind"] for notice in webhook.received] == ["stop"]


def test_a_hang_notice_has_culprit_and_evidence(webhook: Webhook) -> None:
    said = notifier(webhook.address)
    said.journal(HANG)
    said.close()
    (notice,) = webhook.received
    assert (notice["kind"], notice["rank"], notice["host"], notice["evidence"]) == ("hang", 3, "n1", HANG["evidence"])
    assert notice["cause"] == "no heartbeat for 3 s in compute: rank 3 is stopped (state T)"


def test_a_lost_node_is_reported_once_after_its_replacement(webhook: Webhook) -> None:
    said = notifier(webhook.address)
    said.journal(LOST)
    said.journal({"kind": "rebound", "generation": 3, "slot": 1, "from": 1, "to": 2, "outside": False})
    said.journal({"kind": "start", "generation": 3, "world_size": 4})
    said.journal(LOST)
    said.journal({"kind": "start", "generation": 4, "world_size": 4})
    said.close()
    (notice,) = webhook.received
    assert (notice["kind"], notice["host"], notice["cause"]) == ("node lost", "n1", LOST["why"])
    assert notice["done"] == "node 2 has taken slot 1"


def test_an_excluded_node_is_reported_once_a_spare_has_its_slot(webhook: Webhook) -> None:
    why = "n1 has a device that must be reset: a spare takes its place"
    said = notifier(webhook.address)
    said.journal({"kind": "excluded", "generation": 2, "node": 1, "host": "n1", "why": why})
    said.journal({"kind": "rebound", "generation": 2, "slot": 1, "from": 1, "to": 2, "outside": False})
    said.close()
    (notice,) = webhook.received
    assert (notice["kind"], notice["host"], notice["cause"]) == ("node left out", "n1", why)
    assert notice["done"] == "node 2 has taken slot 1"


def test_an_unreplaced_node_is_reported_when_the_run_continues_without_it(webhook: Webhook) -> None:
    said = notifier(webhook.address)
    said.journal(LOST)
    said.journal({"kind": "start", "generation": 3, "world_size": 2})
    said.close()
    assert [notice["done"] for notice in webhook.received] == ["the run continues with 2 ranks"]


def test_the_same_notice_is_repeated_only_after_an_interval(webhook: Webhook) -> None:
    now_s = 0.0
    said = notifier(webhook.address, now_s=lambda: now_s)
    said.journal(HANG)
    now_s = SILENCE_S - 1
    said.journal(HANG)
    said.journal({**HANG, "section": "data"})
    now_s = SILENCE_S + 1
    said.journal(HANG)
    said.close()
    assert [notice["cause"].split()[6].rstrip(":") for notice in webhook.received] == ["compute", "data", "compute"]


def test_a_failing_server_is_retried_and_given_up_without_logging_its_url(caplog: pytest.LogCaptureFixture) -> None:
    hook = Webhook(500, 404, 503)
    said = notifier(hook.address)
    said.journal(HANG)
    said.verdict(STOPPED)
    said.close()
    hook.close()
    assert [notice["kind"] for notice in hook.received] == ["hang"] * TRIES + ["stop"]
    told = "\n".join(caplog.messages)
    assert caplog.messages[0] == "notify: the webhook could not be reached (HTTP status 500), attempt 1 of 3"
    assert len(caplog.messages) == TRIES
    assert "s3cr3t" not in told
    assert "127.0.0.1" not in told


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://127.0.0.1:1/s3cr3t", "URLError"),
        ("file:///etc/s3cr3t", "the address starts neither with http:// nor with https://"),
        ("s3cr3t", "ValueError"),
        ("http://s3cr3t bad host/", "InvalidURL"),
    ],
)
def test_an_unreachable_url_is_logged_and_stops_no_run(address: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    said = notifier(address)
    said.verdict(STOPPED)
    said.close()
    assert caplog.messages == [
        f"notify: the webhook could not be reached ({why}), attempt {n} of {TRIES}" for n in range(1, TRIES + 1)
    ]
    assert "s3cr3t" not in caplog.text


def test_a_run_ends_although_the_queue_of_notices_is_full(caplog: pytest.LogCaptureFixture) -> None:
    said = Notifier(config(), {"HOOK": "http://127.0.0.1:1/"}, 0, "/runs/r-1", pause_s=600.0)
    said.journal(HANG)
    while not said._queue.empty():  # the first one is being sent
        time.sleep(0.001)
    for number in range(WAITING + 1):
        said.journal({**HANG, "section": f"section {number}"})
    said.close(patience_s=0.1)
    assert "too many notices are waiting; one was dropped" in caplog.text
    assert said._thread is not None


def test_without_a_url_nothing_is_sent_and_nothing_fails() -> None:
    for settings, environment in ((config(None), {"HOOK": "http://127.0.0.1:1/"}), (config(), {})):
        said = Notifier(settings, environment, 0, "/runs/r-1")
        said.journal(HANG)
        said.verdict(STOPPED)
        said.close()
        assert said._thread is None


def test_a_corruption_notice_has_the_suspects_and_the_rollback(webhook: Webhook) -> None:
    said = notifier(webhook.address)
    found = "rank 3 computes what no other rank does"
    line = {"kind": "corruption", "generation": 2, "ranks": [3], "nodes": [1], "hosts": ["n1"], "found": found, "sound_step": 40}
    said.journal(line)
    said.close()
    (notice,) = webhook.received
    assert (notice["kind"], notice["rank"], notice["node"], notice["host"], notice["cause"]) == ("corruption", 3, 1, "n1", found)
    assert notice["done"] == "the run goes back to a checkpoint of step 40 or earlier"
    assert notice["to_do"] == "test the devices of n1 before they are used again"
