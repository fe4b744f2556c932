"""Notifies people through a webhook (POST requests), in a separate thread, so that a run never waits for it."""

import contextlib
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headway.runner.contract import Exit, RunConfig, Verdict

_log = logging.getLogger(__name__)

TRIES = 3
TIMEOUT_S = 5.0
PAUSE_S = 2.0  # before another try
# In which the same notice is not sent again.
SILENCE_S = 600.0
WAITING = 100  # notices; more than these are dropped

# Actions for a person, by how an attempt ended; none if the scheduler's next attempt continues by itself.
_TO_DO: Mapping[int, str] = {
    Exit.RETRY_HERE: "start the next attempt unless the scheduler does",
    Exit.RETRY_ELSEWHERE: "inspect the suspected node; exclude it from the next attempt",
    Exit.STOP: "fix the cause; another start would end the same way",
    Exit.UNVERIFIED: "inspect the checkpoints (`headway checkpoint ls RUN`); the run cannot continue by itself",
}


# A notice's kind, by the journal's.
_OF_A_NODE: Mapping[str, str] = {"lost": "node lost", "excluded": "node left out"}


@dataclass(frozen=True)
class Notice:
    """`kind` is the event: "hang", "corruption", "node lost", "node left out", or the verdict's name. `done`: what the run did;
    `to_do`: what a person must do."""

    run: str
    attempt: int
    generation: int
    kind: str
    text: str
    cause: str
    rank: int | None
    node: int | None
    host: str | None
    step: int | None
    evidence: tuple[str, ...]
    done: str
    to_do: str
    report: str
    schema: str = "headway.notice/1"


class Notifier:
    """Takes the journal's lines and the verdict, and sends notices: a hang, corruption, a lost or excluded node (once each), a failed
    attempt.

    `journal` and `verdict` neither block nor raise. The address is a secret: it is in no message and no log.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: Mapping[str, str],
        attempt: int,
        report: str,
        *,
        now_s: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`report` is where a person finds the run. Without `config.notify`, or if its variable is not set, nothing is sent."""
        self._run, self._attempt, self._report = config.run or "", attempt, report
        self._address = environment.get(config.notify.webhook_env, "") if config.notify else ""
        self._now_s, self._pause_s = now_s, pause_s
        self._said: dict[str, float] = {}  # time of the last notice, by key
        # Lost or excluded nodes without a notice so far.
        self._lost: dict[int, Mapping[str, Any]] = {}
        self._failure: Mapping[str, Any] = {}
        self._queue: queue.Queue[Notice | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    # --- what happens -------------------------------------------------------------------------------------------------

    def journal(self, line: Mapping[str, Any]) -> None:
        """A line of the journal, as it was written there."""
        match line["kind"]:
            case "failure":
                self._failure = line
            case "hang":
                self._hung(line)
            case "corruption":
                self._corrupted(line)
            case "lost" | "excluded":
                self._lost.setdefault(int(line["node"]), line)
            case "rebound" if line.get("from") in self._lost:
                self._replaced(self._lost[line["from"]], f"node {line['to']} has taken slot {line['slot']}")
            case "start":
                for lost in list(self._lost.values()):
                    self._replaced(lost, f"the run continues with {line['world_size']} ranks")

    def verdict(self, verdict: Verdict) -> None:
        """The attempt is over."""
        if verdict.exit_code not in _TO_DO:
            return
        facts = {**self._failure, "rank": verdict.rank, "node": verdict.node, "step": verdict.step}
        saved = "nothing is committed" if verdict.committed_step is None else f"step {verdict.committed_step} is committed"
        done = f"the attempt has ended with exit code {verdict.exit_code}; {saved}"
        key = f"{verdict.verdict}: {facts.get('fingerprint', verdict.cause)}"
        notice = self._notice(verdict.verdict, verdict.cause, facts, verdict.generation, done, _TO_DO[verdict.exit_code])
        self._say(key, notice, verdict.evidence)

    def _hung(self, line: Mapping[str, Any]) -> None:
        ranks = line["ranks"]
        cause = f"no heartbeat for {line['silent_s']:.0f} s in {line['section']}: {line['why']}"
        facts = {**line, "rank": ranks[0] if ranks else None}
        done = "all ranks restart from the newest checkpoint"
        to_do = "nothing for now; if it happens again, read the stacks in the evidence"
        self._say(
            f"hang: {line['section']}",
            self._notice("hang", cause, facts, line["generation"], done, to_do),
            line.get("evidence", ()),
        )

    def _corrupted(self, line: Mapping[str, Any]) -> None:
        ranks, hosts = line["ranks"], [host for host in line["hosts"] if host]
        named = {"rank": ranks[0] if len(ranks) == 1 else None, "node": line["nodes"][0] if len(line["nodes"]) == 1 else None}
        facts = {**line, **named, "host": hosts[0] if len(hosts) == 1 else None}
        done = f"the run goes back to a checkpoint of step {line['sound_step']} or earlier"
        to_do = f"test the devices of {', '.join(hosts) or 'the suspected nodes'} before they are used again"
        self._say("corruption", self._notice("corruption", line["found"], facts, line["generation"], done, to_do), ())

    def _replaced(self, lost: Mapping[str, Any], done: str) -> None:
        """Send one notice for each node, however often it comes back."""
        node = int(lost["node"])
        del self._lost[node]
        to_do = "repair or replace the node; one spare fewer is left"
        notice = self._notice(_OF_A_NODE[lost["kind"]], str(lost["why"]), lost, lost["generation"], done, to_do)
        if f"node {node}" not in self._said:
            self._say(f"node {node}", notice, lost.get("evidence", ()))

    def _notice(self, kind: str, cause: str, facts: Mapping[str, Any], generation: int, done: str, to_do: str) -> Notice:
        host = facts.get("host")
        who = "" if host is None else f" on {host}"
        text = f"headway run {self._run}: {kind}{who}: {cause}. Done: {done}. To do: {to_do}."
        place: dict[str, Any] = {name: facts.get(name) for name in ("rank", "node", "host", "step")}
        return Notice(
            self._run,
            self._attempt,
            generation,
            kind,
            text,
            cause,
            **place,
            evidence=(),
            done=done,
            to_do=to_do,
            report=self._report,
        )

    # --- how it is sent -----------------------------------------------------------------------------------------------

    def _say(self, key: str, notice: Notice, evidence: Any) -> None:
        """Hand the notice to the thread, unless an equal one was sent within SILENCE_S."""
        now = self._now_s()
        if not self._address or now - self._said.get(key, now - 2 * SILENCE_S) < SILENCE_S:
            return
        self._said[key] = now
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(Notice(**{**vars(notice), "evidence": tuple(evidence)}))
        except queue.Full:
            _complain("too many notices are waiting; one was dropped")

    def close(self, patience_s: float = TIMEOUT_S) -> None:
        """Wait until all notices are sent or given up, at most this long."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # the process ends without what is left
                self._queue.put(None, timeout=patience_s)
            self._thread.join(patience_s)

    def _send_all(self) -> None:
        while (notice := self._queue.get()) is not None:
            self._send(json.dumps(asdict(notice)).encode())

    def _send(self, body: bytes) -> None:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self._pause_s)
            why = self._post(body)
            if why is None:
                return
            _complain(f"the webhook could not be reached ({why}), attempt {attempt + 1} of {TRIES}")

    def _post(self, body: bytes) -> str | None:
        """Why the request failed; None when it was taken. Never contains the address, which the errors' texts may hold."""
        try:
            request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"}, method="POST")
            if request.type not in ("http", "https"):
                return "the address starts neither with http:// nor with https://"
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return None
        except urllib.error.HTTPError as error:
            return f"HTTP status {error.code}"
        except Exception as error:
            # An address that is none, a name that is not known, a server that hangs up.
            return type(error).__name__


def _complain(text: str) -> None:
    _log.warning("notify: %s", text)
