"""The coordinator's process: connects the state machine to agents, to the chain, and to the journal that people read."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.runner.checkpoint.chain import (
    Base,
    Chain,
    ChainError,
    Claim,
    End,
    MovedError,
    Record,
    SupersededError,
    claims_without_commit,
    history_entries,
    lineage,
    newest_base,
    newest_claim,
    newest_held_base,
)
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Exit, RunConfig, Verdict, from_json, to_json
from headway.runner.coordinator.state import (
    Action,
    Beat,
    Claimed,
    ClaimRefused,
    Coordinator,
    Event,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Said,
    Send,
    Tick,
)
from headway.runner.goodput.ledger import Account, StepTime, account
from headway.runner.lines import append_line, cut_torn_line, read_lines
from headway.runner.messages import MAX_LINE_BYTES, Channel, ChannelError, Message
from headway.runner.rundir import RunDirectory, read_verdict
from headway.runner.train.history import carried_out, limit, refusal

TICK_S = 1.0
SEND_S = 5.0  # for an agent that does not read: it is as good as gone, and the others must not wait for it


def _event(message: Message) -> Event:
    """A message as the event it reports."""
    body, node = message.body, message.node
    match message.kind:
        case "join":
            return Joined(node, body["host"], message.generation, tuple(body["running"]))
        case "beat":
            return Beat(node, body["port"], {int(rank): words["step"] for rank, words in body["ranks"].items()})
        case "exited":
            facts = {key: body[key] for key in ("generation", "rank", "code", "how", "asked", "step")}
            return Exited(node=node, **facts)
        case "evidence" | "committed":
            return Said(node, message.generation, body)
    raise ChannelError(f"an agent does not send {message.kind!r}")


@dataclass
class Server:
    config: RunConfig
    directory: RunDirectory
    host: str
    chain: Chain
    machine: Coordinator
    _channels: dict[int, Channel] = field(default_factory=dict)
    # One event is dealt with whole before the next; with it, the connection that it came by.
    _inbox: asyncio.Queue[tuple[Event, Channel | None]] = field(default_factory=asyncio.Queue)
    _over: bool = False
    _accounted: int = 0  # the newest generation whose ledger is closed
    _metrics_read: int = 0
    _best_step: int = 0

    def __post_init__(self) -> None:
        self._accounted_until = self._open_ledger()

    async def serve(self) -> None:
        """Runs until the attempt has ended and the agents know."""
        server = await asyncio.start_server(self._accept, self.host, self.config.ports.coordinator, limit=MAX_LINE_BYTES)
        port = server.sockets[0].getsockname()[1]
        write_atomic(self.directory.coordinator, json.dumps({"host": self.host, "port": port}).encode() + b"\n")
        ticking = asyncio.create_task(self._tick())
        while not self._over:
            event, channel = await self._inbox.get()
            if self._is_current(event, channel):
                for action in self.machine.handle(event, time.monotonic()):
                    await self._do(action)
        ticking.cancel()
        server.close()
        for channel in self._channels.values():
            channel.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._inbox.put_nowait((Tick(), None))

    def _is_current(self, event: Event, channel: Channel | None) -> bool:
        """A node has one connection: that of its last join that was dealt with. The end of an older one means nothing."""
        match event:
            case Joined(node):
                assert channel is not None  # noqa: S101  only a connection joins
                self._channels[node] = channel
            case Lost(node):
                if self._channels.get(node) is not channel:
                    return False
                del self._channels[node]
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent's connection, until it breaks. Whoever does not know the secret never gets as far as an event."""
        assert self.config.run is not None  # noqa: S101  set when the run directory was made
        channel = Channel(reader, writer, self.directory.secret(), "coordinator", self.config.run, 0)
        node = None
        try:
            await channel.handshake()
            while True:
                message = await channel.receive()
                node = message.node
                self._inbox.put_nowait((_event(message), channel))
        except ChannelError as error:
            if node is not None:
                self._inbox.put_nowait((Lost(node), channel))
            else:
                print(f"refused a connection: {error}", file=sys.stderr, flush=True)
        except asyncio.CancelledError:
            return  # the attempt is over
        finally:
            channel.close()

    # --- the machine --------------------------------------------------------------------------------------------------

    async def _do(self, action: Action) -> None:
        match action:
            case Send(node, kind, generation, body):
                await self._send(node, kind, generation, body)
            case Note(kind, body):
                self._note(kind, body)
            case MakeClaim():
                self._account()
                self._claiming = asyncio.create_task(self._claim_when_possible(action))
            case Finish():
                self._finish(action)
                self._over = True

    async def _claim_when_possible(self, wanted: MakeClaim) -> None:
        """Claims; while the store cannot be used, tries again for as long as a lost agent would be waited for."""
        until = time.monotonic() + self.config.timeouts["agent"].floor_s
        while True:
            try:
                event = self._claim(wanted)
                break
            except OSError as error:
                print(f"the chain cannot be used: {error}", file=sys.stderr, flush=True)
                if time.monotonic() > until:
                    event = ClaimRefused(Exit.RETRY_ELSEWHERE, f"the store cannot be used: {error}")
                    break
                await asyncio.sleep(TICK_S)
        self._inbox.put_nowait((event, None))

    async def _send(self, node: int, kind: str, generation: int, body: dict[str, Any]) -> None:
        if (channel := self._channels.get(node)) is not None:
            try:
                async with asyncio.timeout(SEND_S):
                    await channel.send(kind, generation, node, body)
            except (ChannelError, TimeoutError):
                channel.close()  # its reader sees the same and says Lost

    def _claim(self, wanted: MakeClaim) -> Event:
        history = self.config.history
        try:
            while True:
                records = self.chain.read()
                # A new run takes the line of steps that its spec ends up with from its beginning.
                done = history_entries(records) if newest_claim(records) else carried_out(history)
                standing = {committed.step for committed in lineage(records) if committed.tiers}
                if (why := refusal(history, done, standing)) is not None:
                    return ClaimRefused(Exit.UNVERIFIED, why)
                back_to = limit(history, done)
                base = _base(records, wanted, back_to)
                if base is None and back_to != 0 and (why := _why_not_from_scratch(records, self.directory.checkpoints)):
                    return ClaimRefused(Exit.UNVERIFIED, why)
                try:
                    record = self.chain.claim(
                        base,
                        self.directory.attempt,
                        f"coordinator on {socket.gethostname()}",
                        history_entries=max(done, carried_out(history)),
                        rolled_back=back_to is not None,
                    )
                    break
                except MovedError:  # the generation before was still writing
                    continue
        except ChainError as error:
            return ClaimRefused(Exit.UNVERIFIED, str(error))
        except SupersededError as error:
            return ClaimRefused(Exit.SUPERSEDED, str(error))
        return Claimed(record.generation, base, claims_without_commit(self.chain.read()))

    # --- what stays ---------------------------------------------------------------------------------------------------

    def _note(self, kind: str, body: dict[str, Any]) -> None:
        number = self.machine.generation.number
        facts = {key: value for key, value in body.items() if key != "what"}
        # `refused` brings a generation of its own: the one that saved the checkpoint.
        line = {"kind": kind, "generation": number, "attempt": self.directory.attempt, **facts}
        path = self.directory.journal(number)
        try:
            if any(line == {key: value for key, value in known.items() if key != "wall"} for known, _ in read_lines(path)):
                return  # an agent says again, after each connection, what may not have arrived
            append_line(path, {"wall": time.time(), **line})
        except OSError as error:  # the journal is for people; the run does not depend on it
            print(f"{path}: {error}", file=sys.stderr, flush=True)

    def _finish(self, action: Finish) -> None:
        self._account()
        failure, generation = action.failure, self.machine.generation.number
        assert self.config.run is not None  # noqa: S101
        verdict = Verdict(
            run=self.config.run,
            attempt=self.directory.attempt,
            generation=generation,
            verdict=action.exit_code.name.lower(),
            cause=action.cause,
            exit_code=int(action.exit_code),
            rank=failure.rank if failure else None,
            node=failure.node if failure else None,
            suspects=(failure.node,) if failure and failure.node is not None and action.exit_code is Exit.RETRY_ELSEWHERE else (),
            step=action.step,
            committed_step=action.committed_step,
        )
        write_atomic(self.directory.verdict, to_json(verdict, indent=2).encode() + b"\n")
        if action.exit_code is Exit.COMPLETED:
            try:
                self.chain.append(End(verdict.verdict), generation, self.directory.attempt, "coordinator")
            except (ChainError, SupersededError) as error:
                print(f"the end of the run could not be recorded: {error}", file=sys.stderr, flush=True)

    def _account(self) -> None:
        """Closes the ledger of the generation that has just ended."""
        generation, now = self.machine.generation.number, time.time()
        if generation <= self._accounted:
            return
        self._accounted = generation
        try:
            steps = list(self._new_steps(generation))
            journal = [line for line, _ in read_lines(self.directory.journal(generation))]
        except OSError as error:  # its seconds then stand in the next generation's account
            print(f"generation {generation} is missing in the ledger: {error}", file=sys.stderr, flush=True)
            return
        closed = account(self._accounted_until, now, journal, steps, self._best_step)
        self._best_step = max([self._best_step, *(step.step for step in steps)])
        self._accounted_until = now
        self._write_ledger(generation, closed)

    def _write_ledger(self, generation: int, closed: Account) -> None:
        line = {"schema": "headway.ledger/1", "attempt": self.directory.attempt, "generation": generation, **asdict(closed)}
        try:
            append_line(self.directory.ledger, line)
        except OSError as error:
            print(f"{self.directory.ledger}: {error}", file=sys.stderr, flush=True)

    def _open_ledger(self) -> float:
        """Where this coordinator's accounting begins; the time between two attempts was spent in the queue."""
        lines = [line for line, _ in read_lines(self.directory.ledger)]
        if lines and lines[-1]["attempt"] == self.directory.attempt:
            self._accounted = lines[-1]["generation"]
            return float(lines[-1]["end"])
        began = self.directory.run_json.stat().st_mtime
        if lines:
            before = min(float(lines[-1]["end"]), began)
            self._write_ledger(0, Account(before, began, {"queue": began - before}))
        return began

    def _new_steps(self, generation: int) -> Iterator[StepTime]:
        """Steps written to metrics.jsonl since the last call, of this generation only."""
        for line, read in read_lines(self.directory.metrics, self._metrics_read):
            self._metrics_read = read
            if line["generation"] == generation:
                yield StepTime(line["step"], line["step_s"], line["save_s"])
            else:
                self._best_step = max(self._best_step, line["step"])


def _base(records: list[Record], wanted: MakeClaim, back_to: int | None) -> Base | None:
    """What the next generation starts from: the newest of what is committed and what the nodes hold in memory, or, where the history goes
    back, the committed checkpoint of just that step."""
    if back_to == 0:
        return None
    stored = newest_base(records, wanted.refused, back_to)
    if back_to is not None:
        return stored if stored is not None and stored.step == back_to else None
    held = newest_held_base(records, wanted.held, wanted.refused)
    return max((base for base in (stored, held) if base is not None), key=lambda base: base.step, default=None)


def _why_not_from_scratch(records: list[Record], checkpoints: Path) -> str:
    """Step 0 is only right for a run that has never saved."""
    if lineage(records):
        return "checkpoints were committed, and none of those that count verifies"
    if not records and any(checkpoints.glob("step-*")):
        return f"{checkpoints} holds checkpoints, and the chain is empty: a person must look"
    return ""


def _machine(config: RunConfig, chain: Chain, directory: RunDirectory) -> Coordinator:
    """The state machine as the chain says: new, or going on with what an earlier coordinator of this attempt has claimed."""
    try:
        records = chain.read()
    except ChainError:
        records = []  # the first claim meets the same error and ends the attempt with it
    newest, committed = newest_claim(records), newest_base(records)
    if newest is None or newest.attempt != directory.attempt or not isinstance(newest.entry, Claim):
        return Coordinator(config, 0, time.monotonic())
    journals = [read_lines(path) for path in directory.journal(0).parent.iterdir()]
    restarts = sum(line["kind"] == "failure" and line["attempt"] == directory.attempt for lines in journals for line, _ in lines)
    at = committed.step if committed else None
    return Coordinator(config, newest.generation, time.monotonic(), newest.entry.base, at, restarts)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # a scheduler signals every process of a step; the supervisors decide
        signal.signal(number, signal.SIG_IGN)
    run_json = Path(os.environ["HEADWAY_RUN_JSON"])
    config = from_json(RunConfig, run_json.read_text())
    directory = RunDirectory.of(run_json, int(os.environ["HEADWAY_ATTEMPT"]))
    assert config.run is not None  # noqa: S101
    chain = Chain(PosixStore(directory.chain), config.run)
    for path in (directory.ledger, *directory.journal(0).parent.iterdir()):
        cut_torn_line(path)
    if read_verdict(directory) is not None:  # an earlier coordinator has decided; agents find the verdict themselves
        return
    machine = _machine(config, chain, directory)
    asyncio.run(Server(config, directory, os.environ["HEADWAY_HOST"], chain, machine).serve())


if __name__ == "__main__":
    main()
