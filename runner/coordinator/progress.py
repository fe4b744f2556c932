"""Handles heartbeats, probes and flight recorders, and stops a generation that hangs."""

from collections.abc import Iterable

from headway.runner.contract import journal, orders
from headway.runner.coordinator import failures, fitness, generations
from headway.runner.coordinator.events import Beat, Probed, Recorded
from headway.runner.coordinator.state import Phase, State
from headway.runner.health.watch import Hang


def beat(state: State, event: Beat) -> None:
    member = state.roster.members.get(event.node)
    if member is None:
        return
    member.listens_at(event.port)
    if member.port is not None:
        fitness.listens(state, event.node)
    if not state.generation.started:
        if state.phase is Phase.RUNNING:
            generations.start(state)
        return
    if event.generation != state.generation.number or state.watch is None:
        return
    own = state.roster.ranks(event.node)
    if any(rank not in own for rank in event.ranks):
        return
    # The heartbeats of a lost replica group are of its next processes, which nothing waits for.
    training = {rank: each for rank, each in event.ranks.items() if rank in state.generation.alive}
    state.vitals.beat(training, state.now_s)
    state.watch.beat(training, state.now_s)
    state.generation.best_step = max(state.generation.best_step, state.vitals.step)
    state.best_step = max(state.best_step, state.generation.best_step)
    if not state.saves_on_chain and state.vitals.is_further:
        state.excuse(f"step {state.vitals.step} is completed, and what it saves is not known here")


def check_progress(state: State) -> None:
    if state.watch is None:
        return
    if not state.saves_on_chain and state.waited_s > state.timeout_s("start"):
        # Not every script shows its steps.
        state.excuse(f"its ranks have run for {state.timeout_s('start'):.0f} s, and what they save is not known here")
    findings = state.watch.tick(state.now_s)
    for found in findings.stragglers:
        node = state.roster.node_of(found.rank)
        state.note(journal.Straggler(found.rank, found.ratio, found.own_step_s, node, state.roster.host(node)))
    probe(state, findings.probe)
    if findings.hang is not None:
        hang_found(state, findings.hang)


def probe(state: State, ranks: Iterable[int]) -> None:
    by_node: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        by_node.setdefault(state.roster.node_of(rank), []).append(rank)
    for node, each in by_node.items():
        state.tell(node, orders.ProbeRanks(tuple(each)))


def looked(state: State, event: Probed | Recorded) -> None:
    if state.watch is None or event.generation != state.generation.number:
        return
    if isinstance(event, Probed):
        state.watch.probed(event.ranks, state.now_s)
    else:
        state.watch.recorded(event.ranks, event.said)


def hang_found(state: State, hang: Hang) -> None:
    state.generation.hang = hang
    state.note(journal.Hang(hang.ranks, hang.section, hang.silent_s, hang.why))
    failures.stop_workers(state)
