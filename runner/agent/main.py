"""A node's agent: joins the coordinator, has the supervisor start and end workers, and reports what becomes of them.

It may die at any moment: everything it knows comes again from the supervisor's hello and the coordinator's messages.
"""

import asyncio
import json
import mmap
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.runner.checkpoint.keeper.link import KeeperError, held_by
from headway.runner.contract import SECTIONS, Exit, HeartbeatPage, RunConfig, from_json
from headway.runner.messages import HANDSHAKE_S, MAX_LINE_BYTES, Channel, ChannelError, Message
from headway.runner.rundir import RunDirectory, read_verdict

BEAT_S = 0.5
RECONNECT_S = 0.1
# After SIGTERM, which a script may want to clean up on; one in a collective does not hear it. Longer where it is given time to save.
KILL_AFTER_S = 5.0


@dataclass
class Agent:
    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    incarnation: int
    page: HeartbeatPage
    slot: int | None = None
    port: int | None = None
    workers: dict[int, dict[str, Any]] = field(default_factory=dict)  # by rank, of the newest generation here
    events: list[dict[str, Any]] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)  # ranks that we were told to end
    stopping: bool = False
    _channel: Channel | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the supervisor -----------------------------------------------------------------------------------------------

    async def run(self, descriptor: int) -> None:
        """Serves until the supervisor is gone or has been told how to exit."""
        self._from_supervisor, self._to_supervisor = await asyncio.open_unix_connection(
            sock=socket.socket(fileno=descriptor), limit=MAX_LINE_BYTES
        )
        hello = json.loads(await self._from_supervisor.readline())
        self.workers = {worker["rank"]: worker for worker in hello["workers"]}
        self.events, self.stopping = hello["events"], hello["stopping"]
        listening, meeting = asyncio.create_task(self._hear_supervisor()), asyncio.create_task(self._meet())
        await asyncio.wait({listening, meeting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listening, meeting):
            task.cancel()
        await self._to_supervisor.drain()

    def _ask(self, what: str, **fields: Any) -> None:
        self._to_supervisor.write(json.dumps({"what": what, **fields}).encode() + b"\n")

    async def _hear_supervisor(self) -> None:
        while line := await self._from_supervisor.readline():
            message = json.loads(line)
            match message["what"]:
                case "listening":
                    self.port = message["port"]
                    await self._beat()
                case "event":
                    self.events.append(message["event"])
                    await self._report_event(message["event"])
                case "ended":
                    self.workers[message["worker"]["rank"]] = message["worker"]
                    await self._report_end(message["worker"])
                case "signal":
                    self.stopping = True
                    await self._send("evidence", {"what": "preempted"})

    def _exit(self, code: int) -> None:
        self._ask("exit", code=code)

    # --- the coordinator ----------------------------------------------------------------------------------------------

    async def _meet(self) -> None:
        """Stays connected; gives the node up when the coordinator cannot be reached for too long. Workers go on meanwhile."""
        patience_s = self.config.timeouts["join"].floor_s
        lost_at = time.monotonic()
        while time.monotonic() - lost_at < patience_s:
            try:
                channel = await self._connect()
            except (OSError, ValueError, ChannelError, TimeoutError):
                if self._decided():
                    return
                await asyncio.sleep(RECONNECT_S)
                continue
            self._channel = channel
            try:
                await self._attend(channel)
            except ChannelError as error:
                _say(f"coordinator lost: {error}")
            finally:
                self._channel = None
                channel.close()
            if self._ended.is_set() or self._decided():
                return
            lost_at, patience_s = time.monotonic(), self.config.timeouts["agent"].floor_s
        _say(f"no coordinator for {patience_s:.0f} s")
        self._exit(Exit.RETRY_ELSEWHERE)

    def _decided(self) -> bool:
        """The attempt is over although no stop arrived: it was decided before this agent joined, or while it was cut off."""
        if (verdict := read_verdict(self.directory)) is not None:
            self._exit(verdict.exit_code)
        return verdict is not None

    async def _connect(self) -> Channel:
        address = json.loads(self.directory.coordinator.read_text())
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(address["host"], address["port"], limit=MAX_LINE_BYTES)
        assert self.config.run is not None  # noqa: S101  set when the run directory was made
        channel = Channel(reader, writer, self.directory.secret(), "agent", self.config.run, self.incarnation)
        try:
            await channel.handshake()
        except ChannelError:
            channel.close()
            raise
        return channel

    async def _attend(self, channel: Channel) -> None:
        """One connection: join, say again what may not have arrived, then beat and obey until it breaks or all is over."""
        await channel.send("join", self._generation(), self.node, {"host": self.host, "running": self._running()})
        for event in list(self.events):
            await self._report_event(event)
        for worker in list(self.workers.values()):
            if worker["ended"] is not None:
                await self._report_end(worker)
        if self.stopping:
            await self._send("evidence", {"what": "preempted"})
        beating = asyncio.create_task(self._keep_beating())
        try:
            while not self._ended.is_set():
                self._obey(await channel.receive())
        finally:
            beating.cancel()

    async def _send(self, kind: str, body: dict[str, Any]) -> None:
        """Sends if somebody is there; what matters is said again after the next join."""
        if self._channel is not None:
            try:
                await self._channel.send(kind, self._generation(), self.node, body)
            except ChannelError:
                return  # `_attend` notices the same on its next receive

    async def _keep_beating(self) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        ranks = {rank: self._heartbeat(worker) for rank, worker in self.workers.items() if worker["ended"] is None}
        await self._send("beat", {"port": self.port, "ranks": ranks})

    def _heartbeat(self, worker: dict[str, Any]) -> dict[str, Any]:
        words = self.page.read(worker["local_rank"])
        age_s = (time.monotonic_ns() - words["monotonic_ns"]) / 1e9 if words["monotonic_ns"] else None
        return {"step": words["step"], "section": SECTIONS[words["section"]], "age_s": age_s}

    async def _report_event(self, event: dict[str, Any]) -> None:
        await self._send("committed" if event["what"] == "committed" else "evidence", event)

    async def _report_end(self, worker: dict[str, Any]) -> None:
        facts = {key: worker[key] for key in ("rank", "generation", "code")}
        step = self.page.read(worker["local_rank"])["step"]
        await self._send("exited", {**facts, "how": worker["ended"], "asked": worker["rank"] in self.killed, "step": step})

    def _generation(self) -> int:
        return max((worker["generation"] for worker in self.workers.values()), default=0)

    def _running(self) -> list[int]:
        return sorted(rank for rank, worker in self.workers.items() if worker["ended"] is None)

    # --- orders -------------------------------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        match message.kind:
            case "assign":
                self.slot = message.body["slot"]
                if self.slot == 0 and self.port is None:
                    self._ask("listen")
            case "start":
                self._start(message.generation, message.body)
            case "save":
                for local_rank in range(self.config.procs_per_slot):
                    self.page.write(local_rank, save_request=1)
            case "survey":
                self._surveying = asyncio.create_task(self._survey())
            case "stop":
                self._stop(message)

    async def _survey(self) -> None:
        """Says which captures the keeper of this node holds; none when it cannot be asked."""
        name = os.environ.get("HEADWAY_KEEPER")
        try:
            holdings = await held_by(name) if name else []
        except KeeperError as error:
            _say(str(error))
            holdings = []
        await self._send("evidence", {"what": "held", "holdings": [asdict(holding) for holding in holdings]})

    def _start(self, generation: int, body: dict[str, Any]) -> None:
        assert self.slot is not None  # noqa: S101  assign comes first on every connection
        if generation <= self._generation():
            return
        self.workers, self.killed, self.events = {}, set(), []
        spawned = []
        for local_rank in range(self.config.procs_per_slot):
            rank = self.slot * self.config.procs_per_slot + local_rank
            self.page.write(local_rank, pid=0, generation=generation, step=0, section=0, monotonic_ns=0, save_request=0)
            command = _command(self.config, self.directory, self.slot, local_rank, generation, body)
            spawned.append({"rank": rank, "local_rank": local_rank, "hosts_store": rank == 0, **command})
            self.workers[rank] = {"rank": rank, "local_rank": local_rank, "generation": generation, "ended": None, "code": None}
        self._ask("spawn", generation=generation, workers=spawned)  # in one message: all of them start, or none
        if self.slot == 0:
            self.port = None
            self._ask("listen")

    def _stop(self, message: Message) -> None:
        running = self._running()
        self.killed.update(running)
        if self.config.trainer.kind == "script":
            self._ask("kill", generation=message.generation, signal=int(signal.SIGTERM))
            patience_s = message.body.get("grace_s", KILL_AFTER_S)
            asyncio.get_running_loop().call_later(patience_s, self._kill, message.generation)
        else:
            self._kill(message.generation)
        if (code := message.body.get("exit_code")) is not None:
            self._ended.set()
            self._exit(code)

    def _kill(self, generation: int) -> None:
        self._ask("kill", generation=generation, signal=int(signal.SIGKILL))


def _command(
    config: RunConfig, directory: RunDirectory, slot: int, local_rank: int, generation: int, start: dict[str, Any]
) -> dict[str, Any]:
    """What the supervisor is to run for one rank: argv, the environment beside its own, and where output goes."""
    rank = slot * config.procs_per_slot + local_rank
    torchrun = {  # torchrun's own contract: docs.pytorch.org elastic/run, "Environment Variables"
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": config.world_size,
        "LOCAL_WORLD_SIZE": config.procs_per_slot,
        "GROUP_RANK": slot,
        "GROUP_WORLD_SIZE": config.slots,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": config.world_size,
        "MASTER_ADDR": start["master_addr"],
        "MASTER_PORT": start["master_port"],
        "TORCHELASTIC_RESTART_COUNT": start["restarts"],
        "TORCHELASTIC_MAX_RESTARTS": config.restart.budget,
        "TORCHELASTIC_RUN_ID": config.run,
        # Rank 0 hosts the store on the socket that its supervisor opened, before any script code runs (runner/worker.py).
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    own = {
        "HEADWAY_RUN_JSON": directory.run_json,
        "HEADWAY_ATTEMPT": directory.attempt,
        "HEADWAY_GENERATION": generation,
        "HEADWAY_BASE": json.dumps(start["base"]),
    }
    if (partner := start.get("partner")) is not None:  # the node whose keeper holds copies of this node's captures
        own["HEADWAY_PARTNER"] = directory.keeper(partner)
    if config.trainer.kind == "script":
        argv = [sys.executable, "-u", "-m", "headway.runner.boot", *config.trainer.options["argv"]]
    else:
        argv = [sys.executable, "-u", "-m", "headway.runner.train.main"]
    # What was typed as torchrun prints where it was typed.
    log = str(directory.log(slot, rank)) if config.trainer.options.get("logs", config.trainer.kind != "script") else None
    return {"argv": argv, "environment": {name: str(value) for name, value in {**torchrun, **own}.items()}, "log": log}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # a scheduler signals every process of a step; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    environment = {name: os.environ[f"HEADWAY_{name}"] for name in ("RUN_JSON", "ATTEMPT", "NODE", "HOST", "INCARNATION")}
    descriptors = {name: int(os.environ[f"HEADWAY_{name}"]) for name in ("SUPERVISOR_FD", "HEARTBEAT_FD")}
    run_json = Path(environment["RUN_JSON"])
    config = from_json(RunConfig, run_json.read_text())
    directory = RunDirectory.of(run_json, int(environment["ATTEMPT"]))
    page = HeartbeatPage(memoryview(mmap.mmap(descriptors["HEARTBEAT_FD"], 0)))
    agent = Agent(config, directory, int(environment["NODE"]), environment["HOST"], int(environment["INCARNATION"]), page)
    asyncio.run(agent.run(descriptors["SUPERVISOR_FD"]))


if __name__ == "__main__":
    main()
