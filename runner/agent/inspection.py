"""Inspects the ranks of a node for the coordinator: their processes, flight recorders, NCCL's own report, and the keeper's captures."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from headway.runner.agent import probe, ras
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.flight import Recorder, answers
from headway.runner.agent.protocol import Dump, Request
from headway.runner.agent.reports import Reports
from headway.runner.checkpoint.keeper.link import KeeperError, held_by
from headway.runner.health.collectives import Collective

_log = logging.getLogger(__name__)

# For a flight recorder's dump: NCCL's look for requests once a second.
RECORDED_S, RECORDED_LOOK_S = 3.0, 0.05


class Inspection:
    """`survey` and `probe` report what they find."""

    def __init__(self, state: AgentState, reports: Reports, recorder: Recorder, ask: Callable[[Request], None]) -> None:
        self._state, self._reports, self._recorder, self._ask = state, reports, recorder, ask

    async def survey(self) -> None:
        """Report the captures of this node's keeper; none if it does not answer."""
        name = os.environ.get("HEADWAY_KEEPER")
        try:
            holdings = await held_by(name) if name else []
        except KeeperError as error:
            _log.warning("the keeper cannot be asked: %s", error)
            holdings = []
        self._reports.evidence({"what": "held", "holdings": [asdict(holding) for holding in holdings]})

    async def probe(self, ranks: Sequence[int] | None) -> None:
        """Look at the processes of some ranks, or of all that run here."""
        state = self._state
        asked = {worker.rank: worker.pid for worker in state.running() if worker.pid}
        asked = {rank: pid for rank, pid in asked.items() if ranks is None or rank in ranks}
        generation = state.generation
        found = await probe.look(asked, state.directory.stacks, lambda some: self._ask(Dump(sorted(some))))
        if generation == state.generation:
            self._reports.evidence({"what": "probe", "ranks": {rank: asdict(seen) for rank, seen in found.items()}})
            state.spin(self.record(generation, list(asked)))

    async def record(self, generation: int, ranks: list[int]) -> None:
        """Request the flight recorders of ranks that have not moved since the previous look, and NCCL's report."""
        state = self._state
        beats_ns = {rank: state.heartbeat_ns(rank) for rank in ranks}
        due = self._recorder.to_ask(beats_ns, time.monotonic_ns())
        if not due:
            return
        asked = self._recorder.ask(generation, due)
        if state.slot is not None and state.slot < ras.NODES:
            state.spin(self.ask_nccl(generation, beats_ns))
        until = time.monotonic() + RECORDED_S
        while asked and time.monotonic() < until and generation == state.generation:
            await asyncio.sleep(RECORDED_LOOK_S)
            found = await asyncio.to_thread(answers, asked)
            asked = {rank: before for rank, before in asked.items() if rank not in found}
            if still := {rank: entered for rank, entered in found.items() if state.heartbeat_ns(rank) == beats_ns[rank]}:
                self._report_recorded(still)

    async def ask_nccl(self, generation: int, beats_ns: Mapping[int, int]) -> None:
        """Keep NCCL's report on the job, and report its finding unless a rank has moved meanwhile."""
        state = self._state
        if (text := await ras.report(os.environ)) is not None:
            ras.write(state.directory.evidence / f"ras-{state.node}.txt", text)
            still = generation == state.generation and all(state.heartbeat_ns(rank) == ns for rank, ns in beats_ns.items())
            if still and (summary := ras.summary(text)) is not None:
                self._report_recorded({}, summary)

    def _report_recorded(self, found: Mapping[int, tuple[Collective, ...]], summary: str | None = None) -> None:
        ranks = {rank: [asdict(each) for each in entered] for rank, entered in found.items()}
        self._reports.evidence({"what": "recorded", "ranks": ranks, "said": summary})
