"""Starts and ends the ranks of this node in a generation, by requests to the supervisor."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Collection

from headway.runner.agent import devices, probe
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.flight import Recorder
from headway.runner.agent.protocol import Dump, KillWorkers, RankOrder, Request, Respawn, Spawn, WorkerProcess
from headway.runner.agent.rank_orders import rank_order
from headway.runner.agent.reports import Reports
from headway.runner.contract.orders import StartRanks, Stop

_log = logging.getLogger(__name__)

# From SIGTERM to the first look at the ranks that still run, and between two looks.
UNHEARD_S = 5.0
DEVICES_FREE_S = 10.0


class RankProcesses:
    """`start` on a node that has a slot in the generation; `stop` and `kill` on any."""

    def __init__(self, state: AgentState, reports: Reports, recorder: Recorder, ask: Callable[[Request], None]) -> None:
        self._state, self._reports, self._recorder, self._ask = state, reports, recorder, ask
        self._starting: asyncio.Task[None] | None = None

    def start(self, slot: int, order: StartRanks) -> None:
        """Start the workers of the generation that the state has entered, in place of those before."""
        state, procs = self._state, self._state.config.procs_per_slot
        dead = [worker.pid for worker in state.workers.values() if worker.pid]
        self._clear(slot)
        try:
            orders = [rank_order(state, self._recorder, slot, local_rank, order) for local_rank in range(procs)]
        except Exception as error:
            # Disk full or no such device: report the ranks as failed, or the coordinator waits for them forever.
            self._not_started(f"not started: {error}", asked=False)
            return
        self._starting = asyncio.create_task(self._spawn(state.generation, orders, dead))

    def expect(self, slot: int) -> None:
        """Take the place of the ranks of a lost node in a generation that runs; `restart` starts them."""
        self._clear(slot)
        for worker in self._state.workers.values():
            worker.ended, worker.code, worker.asked = "not started", -signal.SIGKILL, True

    def _clear(self, slot: int) -> None:
        """Forget the workers of the generation before, and expect those of the one that the state has entered."""
        state, procs = self._state, self._state.config.procs_per_slot
        state.workers = {}
        state.events.clear()
        self._reports.begin()
        if self._starting is not None:  # of a generation that this one replaces
            self._starting.cancel()
            self._starting = None
        for local_rank in range(procs):
            rank = slot * procs + local_rank
            state.page.write(
                local_rank,
                pid=0,
                generation=state.generation,
                step=0,
                section=0,
                monotonic_ns=0,
                save_request=0,
                pulse=0,
                own_ns=0,
                members=0,
            )
            state.workers[rank] = WorkerProcess(rank, local_rank, state.generation, 0)

    def restart(self, ranks: Collection[int], start: int) -> None:
        """Start those of the ranks again that are this node's, in the generation that runs here; `start` counts such starts."""
        state, procs = self._state, self._state.config.procs_per_slot
        own = sorted(rank for rank in ranks if rank in state.workers)
        if state.slot is None or not own:
            return
        dead = [state.workers[rank].pid for rank in own]
        for rank in own:
            state.page.write(rank % procs, pid=0, step=0, section=0, monotonic_ns=0, save_request=0, pulse=0, own_ns=0)
            state.workers[rank] = WorkerProcess(rank, rank % procs, state.generation, 0)
        try:
            if state.start_order is None:
                # It was given to the agent before this one.
                raise ValueError("this agent does not know the order of the generation")
            orders = [rank_order(state, self._recorder, state.slot, rank % procs, state.start_order, joins=start) for rank in own]
        except Exception as error:
            self._not_started(f"not started: {error}", asked=False, ranks=own)
            return
        state.spin(self._respawn(state.generation, orders, dead))

    async def _respawn(self, generation: int, orders: list[RankOrder], dead: list[int]) -> None:
        await devices.until_free(dead, DEVICES_FREE_S)
        # Another generation may have begun in the meantime.
        if generation == self._state.generation:
            self._ask(Respawn(generation, orders))

    def end(self, ranks: Collection[int]) -> None:
        """End those of the ranks that are this node's."""
        if own := [rank for rank in ranks if rank in self._state.workers]:
            self._ask(KillWorkers(self._state.generation, signal.SIGKILL, own))

    def stop(self, generation: int, order: Stop) -> None:
        """End the workers of this generation and of earlier ones; those of a script may save first."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            self._not_started("not started", asked=True)
        elif self._state.config.trainer.kind == "script":
            self._ask(KillWorkers(generation, signal.SIGTERM))
            if order.grace_s is None:
                self._state.spin(self.end_unheard(generation))
            else:
                asyncio.get_running_loop().call_later(order.grace_s, self.kill, generation)
        else:
            self.kill(generation)

    def kill(self, generation: int) -> None:
        self._ask(KillWorkers(generation, signal.SIGKILL))

    async def end_unheard(self, generation: int) -> None:
        """Send SIGKILL to ranks that still run after SIGTERM because another rank has failed. A script may save at that signal, so it has
        as long as under torchrun. If all of them wait in collectives, SIGKILL comes sooner: Python runs no signal handler there, and the
        rank that failed will not join."""
        state = self._state
        until = time.monotonic() + state.config.timeout_s("terminate")
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(UNHEARD_S, left_s))
            pids = {each.rank: each.pid for each in state.running() if each.generation <= generation and each.pid}
            try:
                found = await probe.look(pids, state.directory.stacks, lambda some: self._ask(Dump(sorted(some))))
            except Exception as error:
                # A look that fails must not keep SIGKILL from them.
                _log.warning("cannot inspect the ranks that still run: %s", error)
                continue
            if all(seen.where == "collective" for seen in found.values()):
                break
        self.kill(generation)

    async def _spawn(self, generation: int, orders: list[RankOrder], dead: list[int]) -> None:
        """Request all workers in one message: all of them start, or none. The devices of the dead ones are free before."""
        await devices.until_free(dead, DEVICES_FREE_S)
        if self._reports.devices is None:
            self._state.spin(self._find_devices())
        self._ask(Spawn(generation, orders))

    async def _find_devices(self) -> None:
        """Look the devices up while they are all present: NVML does not list a lost one."""
        self._reports.devices = await devices.used(os.environ, self._state.config.procs_per_slot)

    def _not_started(self, how: str, *, asked: bool, ranks: Collection[int] | None = None) -> None:
        """Report the ends of workers that were never started: of all, or of these ranks."""
        for worker in (worker for rank, worker in self._state.workers.items() if ranks is None or rank in ranks):
            worker.ended, worker.code, worker.asked = how, -signal.SIGKILL, asked
            self._reports.end(worker)
