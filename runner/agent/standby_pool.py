"""Holds the standbys of a node: starts one for each local rank, and has them become the workers of a generation."""

import contextlib
import json
import os
import selectors
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from headway.runner.agent import store, warm
from headway.runner.agent.agent_link import AgentLink
from headway.runner.agent.launch import Torchrun, is_ours, worker_argv
from headway.runner.agent.place import Place
from headway.runner.agent.processes import kill_group, open_log
from headway.runner.agent.protocol import RankOrder, StandbyReport
from headway.runner.agent.rendezvous import Rendezvous
from headway.runner.imports import MODULES, recorded


class StandbyPool:
    """The standbys that wait, by local rank."""

    def __init__(self, place: Place, selector: selectors.BaseSelector, agent: AgentLink) -> None:
        self._place, self._selector, self._agent = place, selector, agent
        self._standbys: dict[int, warm.Standby] = {}

    def pids(self) -> set[int]:
        return {standby.pid for standby in self._standbys.values()}

    def ready(self) -> set[int]:
        """Return the local ranks whose standbys have imported everything and were ordered by an agent."""
        return {local_rank for local_rank, standby in self._standbys.items() if standby.ready and not standby.first}

    def keep(self, local_rank: int, standby: warm.Standby) -> None:
        self._standbys[local_rank] = standby
        self._selector.register(standby.orders, selectors.EVENT_READ, partial(self._hear, standby))

    def take(self, local_rank: int) -> warm.Standby:
        """Take a standby out of those that wait."""
        standby = self._standbys.pop(local_rank)
        with contextlib.suppress(KeyError):  # it has ended, and was seen to
            self._selector.unregister(standby.orders)
        return standby

    def start(self, orders: Sequence[RankOrder], modules: Sequence[str]) -> None:
        """Start a standby for each order whose local rank has none."""
        for order in [order for order in orders if order.local_rank not in self._standbys]:
            environment = {**self._place.worker_environment(), **order.environment}
            try:
                companion = self._place.companion_environment()
                overlays = recorded(Path(environment[MODULES]), order.local_rank)
                stdin = self._place.passes_stdin()
                started = warm.start_standby(
                    order.argv, environment, companion, modules, order.cpus, stdin=stdin, overlays=overlays
                )
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return
            self.keep(order.local_rank, started)

    def start_first(self, rendezvous: Rendezvous) -> None:
        """Have the first workers begin to import while this node still meets the others; a launcher may have begun even sooner. One of
        them forks the host of the store."""
        passed_on, host = os.environ.pop(warm.PASSED_ON, None), os.environ.pop(store.PASSED_ON, None)
        if host is not None:
            rendezvous.keep_host(store.take_on(host))
        config = self._place.config
        environment, given = self._place.worker_environment(), Torchrun.of(config)
        if passed_on is not None:
            for local_rank, standby in warm.take_on(passed_on, environment).items():
                self.keep(local_rank, standby)
            return
        if not (given is not None and given.virtual_local_rank):
            self._start_unordered(environment, warm.first_imports(config.trainer.options.get("argv", ())), rendezvous)
        if not rendezvous.has_host:
            rendezvous.start_host()

    def end_others(self, orders: Mapping[int, RankOrder]) -> None:
        """End the standbys of other local ranks than those that are ordered."""
        for local_rank in self._standbys.keys() - orders.keys():
            kill_group(self.take(local_rank).pid, signal.SIGKILL)

    def hand_over(self, orders: Mapping[int, RankOrder]) -> tuple[dict[int, int], dict[int, str]]:
        """Return the standbys that have become workers, local rank -> pid, and why the others have not; those are ended."""
        given: list[tuple[warm.Standby, warm.WorkerOrder]] = []
        logs: list[int] = []
        descriptors = self._place.worker_descriptors()
        for local_rank in self._standbys.keys() & orders.keys():
            standby, order = self.take(local_rank), orders[local_rank]
            environment = {**self._place.worker_environment(), **order.environment}
            out, err = (open_log(Path(path)) if path else os.dup(fd) for path, fd in ((order.stdout, 1), (order.stderr, 2)))
            logs += [out, err]
            added = frozenset(order.environment)
            given.append((standby, warm.WorkerOrder(local_rank, order.argv, environment, descriptors, out, err, added)))
        taken = warm.hand_over(given)
        for log in logs:
            os.close(log)
        return taken

    def ended(self, pid: int) -> None:
        """Forget a standby that has ended; any other process is none of this pool's."""
        for local_rank, standby in list(self._standbys.items()):
            if standby.pid == pid:
                self.take(local_rank).orders.close()

    def close(self) -> None:
        for standby in self._standbys.values():
            standby.orders.close()

    def _start_unordered(self, environment: dict[str, str], modules: Sequence[str], rendezvous: Rendezvous) -> None:
        """Start a standby for each local rank, before anything is known of its rank."""
        cpus = json.loads(os.environ.get("HEADWAY_CPUS", "{}"))
        for local_rank in range(self._place.config.procs_per_slot):
            argv = worker_argv(self._place.config, local_rank, os.environ)
            if not is_ours(argv):
                return
            companion, stdin = self._place.companion_environment(), self._place.passes_stdin()
            rank_cpus = cpus.get(str(local_rank))
            host, theirs = store.begin() if modules and not rendezvous.has_host else (None, None)
            try:
                started = warm.start_standby(
                    argv, environment, companion, modules, rank_cpus, first=True, stdin=stdin, store=theirs
                )
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return
            self.keep(local_rank, started)
            if host is not None and theirs is not None:
                theirs.close()
                rendezvous.keep_host(host)

    def _hear(self, standby: warm.Standby) -> None:
        if not standby.hear():  # its end comes as SIGCHLD too
            self._selector.unregister(standby.orders)
        elif standby.ready and not standby.first and all(each.ready for each in self._standbys.values()):
            self._agent.report(StandbyReport(sorted(self._standbys)))
