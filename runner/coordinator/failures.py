"""Ends a generation after its ranks have ended, and decides what follows: the next generation or the verdict."""

from collections.abc import Iterable

from headway.runner.contract import CauseKind, Exit, journal, orders
from headway.runner.coordinator import ending, fitness, generations
from headway.runner.coordinator.causes import Cause, Ended, cause_of, corruption_cause, hang_cause
from headway.runner.coordinator.events import Exited
from headway.runner.coordinator.policy import FAULTY, RestartDecision
from headway.runner.coordinator.state import GRACE_SHARE, PendingEnd, Phase, State


def ranks_lost_with(state: State, node: int, how: str, *, asked: bool = False) -> None:
    """Count the node's ranks as ended: no agent will report their ends."""
    step = state.generation.best_step
    ranks = sorted(state.generation.alive.intersection(state.roster.ranks(node)))
    ranks_ended(state, [Ended(rank, node, -9, how, asked=asked, step=step) for rank in ranks])


def exited(state: State, event: Exited) -> None:
    fitness.ranks_gone(state, event.node, (each.rank for each in event.exits))
    if event.generation == state.generation.number and event.node in state.roster.slot_of:
        ranks_ended(state, event.exits)


def ranks_ended(state: State, exits: Iterable[Ended]) -> None:
    new = [each for each in exits if each.rank in state.generation.alive]
    for each in new:
        state.generation.alive.discard(each.rank)
        state.generation.exits.append(each)
        state.generation.best_step = max(state.generation.best_step, each.step)
        if not each.asked and each.code not in state.agreed_codes:
            state.generation.failed_nodes.add(each.node)
    state.best_step = max(state.best_step, state.generation.best_step)
    if state.watch is not None and state.phase is Phase.RUNNING:
        state.watch.ended(each.rank for each in new)
    failed = any(each.code not in state.agreed_codes for each in new)
    if state.phase is Phase.RUNNING and failed and state.generation.alive:
        stop_workers(state)
    if new and not state.generation.alive and state.phase in (Phase.RUNNING, Phase.STOPPING):
        generation_over(state)


def stop_workers(state: State) -> None:
    state.generation.dissolve_replicas()
    state.enter(Phase.STOPPING)
    state.tell_all(stop_order(state))


def stop_order(state: State) -> orders.Stop:
    """Return the order to stop. A script may take part of the grace period to save if the run is asked to stop; one that hangs may not."""
    if state.is_script and state.preempted_at_s is not None:
        return orders.Stop(max(0.0, GRACE_SHARE * state.config.grace_s - (state.now_s - state.preempted_at_s)))
    return orders.Stop(None if state.generation.hang is None else 0.0)


def generation_over(state: State) -> None:
    codes = {each.code for each in state.generation.exits}
    # A script that is asked to stop may end with 0.
    if codes == {0} and not (state.preempting and state.is_script):
        ending.end_attempt(state, Exit.COMPLETED, "all ranks finished")
    elif Exit.SUPERSEDED in codes & state.agreed_codes:
        ending.end_attempt(state, Exit.SUPERSEDED, "a newer generation has claimed the run")
    elif state.generation.corrupted is not None:
        decide(state, cause_of_failure(state))
    elif state.preempting:
        ending.end_attempt(state, *state.asked)
    elif state.generation.unread and len(state.generation.loaded) < state.generation.world_size:
        end_unread(state)
    elif (
        state.generation.refused
        or not state.generation.known
        or (state.generation.regroups and not state.generation.failed_nodes)
    ):
        generations.go_on(state)
    else:
        decide(state, cause_of_failure(state))


def end_unread(state: State) -> None:
    """End the attempt; the next one finds the chain unchanged, and excludes the nodes that could not read it unless all could not."""
    nodes = sorted(state.generation.unread)
    node, unread = nodes[0], state.generation.unread[nodes[0]]
    host = state.roster.host(node)
    elsewhere = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    what = f"step {unread.step} of generation {unread.generation} in tier `{unread.tier}`: {unread.name}: {unread.reason}"
    text = f"{host or f'node {node}'}{elsewhere} could not read {what}; this is not treated as damage, and nothing is deleted"
    cause = Cause(CauseKind.STORAGE, f"{CauseKind.STORAGE}: unread", text, unread.rank, node, host, state.best_step, outside=True)
    ending.note_failure(state, cause)
    everywhere = 1 < len(state.roster.slots) == len(nodes)
    ending.end_attempt(state, Exit.RETRY_ELSEWHERE, text, cause, () if everywhere else tuple(nodes))


def cause_of_failure(state: State) -> Cause:
    hosts = {node: member.host for node, member in state.roster.members.items() if member.host}
    if (found := state.generation.corrupted) is not None:
        nodes = {rank: state.roster.node_of(rank) for rank in found.ranks}
        return corruption_cause(found.found, found.ranks, nodes, hosts, state.generation.best_step)
    if (hang := state.generation.hang) is not None:
        nodes = {rank: state.roster.node_of(rank) for rank in hang.ranks}
        return hang_cause(hang, nodes, hosts, state.generation.best_step, state.generation.exits)
    return cause_of(state.generation.exits, state.generation.raised, hosts, script=state.is_script)


def decide(state: State, cause: Cause) -> None:
    """Decide what follows from a failure: the next generation, perhaps without a suspect, or the verdict."""
    ending.note_failure(state, cause)
    state.policy.progressed(new_steps(state, cause))
    decision = state.generation.decision or state.policy.failed(cause, spare_nodes=len(state.roster.spares()))
    if cause.kind in FAULTY and cause.node is not None and state.policy.judges:
        state.roster.barred.add(cause.node)
    if state.preempting:
        decision = RestartDecision(*state.asked)
    if decision.verdict is not None:
        suspects = suspects_of(state, cause) if decision.verdict in (Exit.RETRY_ELSEWHERE, Exit.PREEMPTED) else ()
        end_soundly(state, decision.verdict, decision.why, cause, suspects)
        return
    for node in decision.exclude:
        state.roster.members[node].excluded = True
        state.note(journal.Excluded(decision.why, node, state.roster.host(node)))
    generations.go_on(state)


def suspects_of(state: State, cause: Cause) -> tuple[int, ...]:
    if cause.node is not None or state.generation.corrupted is None:
        return () if cause.node is None else (cause.node,)
    return tuple(sorted({state.roster.node_of(rank) for rank in state.generation.corrupted.ranks}))


def end_soundly(state: State, exit_code: Exit, why: str, cause: Cause | None, suspects: tuple[int, ...]) -> None:
    """End the attempt; after corruption only once a claim has undone the unsound checkpoints, so that no later attempt uses them."""
    if state.generation.corrupted is None:
        ending.end_attempt(state, exit_code, why, cause, suspects)
        return
    state.pending_end, state.holdings = PendingEnd(exit_code, why, cause, suspects), {}
    generations.make_claim(state)


def new_steps(state: State, cause: Cause) -> int:
    """Return how many steps no earlier generation had reached. A script counts its steps from each start, so all of them count."""
    if state.is_script:
        return state.generation.best_step
    before = max(state.reached, state.generation.base.step if state.generation.base else 0)
    state.reached = max(before, cause.step, state.generation.best_step)
    return state.reached - before
