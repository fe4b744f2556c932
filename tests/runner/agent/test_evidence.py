"""Tests what an agent adds to a silence or an exit: recorded collectives and reports of the driver."""

import asyncio
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.runner.agent import inspection, ras
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.flight import DUMPS, PIPES, newest
from headway.runner.agent.kernel_log import KernelLog
from headway.runner.agent.main import Agent
from headway.runner.agent.protocol import WorkerProcess
from headway.runner.contract import HeartbeatPage, Mesh, RunConfig, RunDirectory, Trainer
from headway.runner.coordinator.events import Event, Exited, RanksUndead, Recorded
from headway.runner.coordinator.reading import event_of
from headway.runner.health.xid import Xid
from headway.runner.messages import Message

CONFIG = RunConfig(slots=2, procs_per_slot=2, mesh=Mesh(dp_shard=4), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="")
# The format of torch 2.13 (test_flight.py has real dumps).
DUMP = {
    "entries": [
        {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 7,
            "is_p2p": False,
            "profiling_name": "gloo:all_reduce",
            "state": "scheduled",
            "retired": False,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
        }
    ]
}
WAITS = newest(DUMP)


class CoordinatorLink:
    """The link to a coordinator: messages are parsed as a coordinator parses them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, kind: str, generation: int, node: int, body: Mapping[str, Any]) -> None:
        self.events.append(event_of(Message("r", generation, node, 0, len(self.events), kind, dict(body))))


def agent(tmp_path: Path) -> tuple[Agent, CoordinatorLink]:
    """An agent of the second node, with ranks 2 and 3 in generation 5."""
    directory = RunDirectory(tmp_path, 0)
    directory.evidence.mkdir(parents=True)
    page = HeartbeatPage(memoryview(bytearray(HeartbeatPage.bytes_for(2))))
    workers = {rank: WorkerProcess(rank, rank - 2, 5, 1) for rank in (2, 3)}
    state = AgentState(CONFIG, directory, 1, "n1", page, slot=1, generation=5, workers=workers)
    found, said = Agent(state, 0), CoordinatorLink()
    found._reports.link = said  # type: ignore[assignment]
    return found, said


@pytest.mark.parametrize(
    ("devices", "ours"),
    [(frozenset({"0000:3b:00"}), True), (None, None), (frozenset({"0000:5e:00"}), False)],
    ids=["this job", "possibly this job", "another job"],
)
def test_driver_reports_accompany_each_rank_exit_on_their_node(
    devices: frozenset[str] | None, ours: bool | None, tmp_path: Path
) -> None:
    found, said = agent(tmp_path)
    found._reports.devices = devices
    log = tmp_path / "kmsg"
    log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 48, before this generation\n")
    found._reports._kernel = KernelLog(log)

    async def scenario() -> None:
        with log.open("a") as file:
            file.write("4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
        for worker in found._state.workers.values():
            worker.ended, worker.code = "exit code 1", 1
            found._reports.end(worker)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    (exited,) = said.events
    assert isinstance(exited, Exited)
    lost = () if ours is False else (Xid(79, "PCI:0000:3b:00", "GPU has fallen off the bus.", ours),)
    assert [(each.rank, each.xids) for each in exited.exits] == [(2, lost), (3, lost)]


def test_the_supervisors_reports_of_undying_ranks_reach_the_coordinator(tmp_path: Path) -> None:
    found, said = agent(tmp_path)

    async def scenario() -> None:
        found._from_supervisor = asyncio.StreamReader()
        found._from_supervisor.feed_data(b'{"what": "undead", "undead": [{"rank": 3, "state": "D"}]}\n')
        found._from_supervisor.feed_eof()
        await found._hear_supervisor()

    asyncio.run(scenario())
    assert said.events == [RanksUndead(1, 5, {3: "D"})]


@pytest.mark.parametrize("moves", [False, True], ids=["while it stalls", "and not once it has advanced"])
def test_a_ranks_recorded_collectives_are_sent_at_the_second_probe(
    moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "RECORDED_S", 0.5 if moves else 60.0)
    monkeypatch.setenv("NCCL_RAS_ENABLE", "0")
    found, said = agent(tmp_path)
    variables = found._recorder.variables(5)
    requests = {}
    for local_rank, rank in enumerate((2, 3)):
        path = f"{variables[PIPES]}{rank}.pipe"
        os.mkfifo(path)
        requests[rank] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        found._state.page.write(local_rank, monotonic_ns=1)

    async def answer() -> None:
        while True:
            await asyncio.sleep(0.01)
            try:
                os.read(requests[3], 64)
            except BlockingIOError:
                continue
            if moves:
                found._state.page.write(1, monotonic_ns=2)
            Path(f"{variables[DUMPS]}3").write_bytes(pickle.dumps(DUMP))

    async def scenario() -> None:
        answering = asyncio.create_task(answer())
        await found._inspection.record(5, [2, 3])
        assert not said.events, "the first look may be at a pause of a moment"
        recording = asyncio.create_task(found._inspection.record(5, [2, 3]))
        while not moves and not said.events:
            await asyncio.sleep(0.01)
        if moves:
            await recording
        recording.cancel()
        answering.cancel()

    asyncio.run(scenario())
    for descriptor in requests.values():
        os.close(descriptor)
    assert said.events == ([] if moves else [Recorded(1, 5, {3: WAITS}, None)])


def test_the_ras_report_is_stored_and_its_finding_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = agent(tmp_path)
    text = "Errors\n======\n\nDEAD\n  1 job process is considered dead\n"

    async def report(_: object) -> str:
        return text

    monkeypatch.setattr(ras, "report", report)
    asyncio.run(found._inspection.ask_nccl(5, {2: 0, 3: 0}))
    assert said.events == [Recorded(1, 5, {}, "DEAD: 1 job process is considered dead")]
    assert (found._state.directory.evidence / "ras-1.txt").read_text() == text
