"""Has the other replica groups train on while a lost one starts again.

lost -> its other ranks end -> its ranks start -> ready -> a member again

A group is lost with its first rank that ends. The others get the new members at once, agree on the step and divide its share of the
batch; its new ranks are members again when all of them are ready to take the state from another group's memory. All ranks
restart instead, as without replica recovery, if no other group has the state, if something other than a process failed, or if the group
does not come back in time.
"""

from dataclasses import replace

from headway.runner.contract import CauseKind, Members, journal, orders
from headway.runner.coordinator import failures
from headway.runner.coordinator.causes import Cause, Ended, cause_of
from headway.runner.coordinator.events import Exited
from headway.runner.coordinator.state import LostReplica, Phase, ReplicaGroups, State

# Causes that end with the process that they end: a device, a node or the numbers are not mended by another start in the same place.
_OF_A_PROCESS = frozenset({CauseKind.CRASH, CauseKind.OUT_OF_MEMORY})


def exited(state: State, event: Exited) -> None:
    """Take the ends of ranks whose replica group is lost, or is lost by them; the others end the generation."""
    if event.generation != state.generation.number or event.node not in state.roster.slot_of:
        failures.exited(state, event)
        return
    rest = []
    for each in event.exits:
        replicas = state.generation.replicas
        if replicas is None or state.phase is not Phase.RUNNING:
            rest.append(each)
        elif (lost := replicas.lost.get(replicas.of(each.rank))) is not None:
            _ended_in_lost(state, replicas, lost, each)
        elif not _lose(state, replicas, each):
            rest.append(each)
    failures.exited(state, replace(event, exits=tuple(rest)))


def ready(state: State, rank: int, start: int) -> None:
    """Make a lost group a member again once all of its new ranks are ready."""
    replicas = state.generation.replicas
    if replicas is None or state.phase is not Phase.RUNNING:
        return
    replica = replicas.of(rank)
    lost = replicas.lost.get(replica)
    # An agent repeats events of earlier starts.
    if lost is None or lost.started != start:
        return
    lost.ready.add(rank)
    if len(lost.ready) == replicas.size:
        del replicas.lost[replica]
        state.generation.alive |= set(replicas.ranks(replica))
        _change(state, replicas, {*replicas.members.replicas, replica})
        state.watch = state.make_watch(state.generation.world_size, state.timeouts, state.now_s)
        state.watch.ended(rank for other in replicas.lost for rank in replicas.ranks(other))


def check(state: State) -> None:
    """Stop all ranks if a lost group has not come back in time."""
    replicas = state.generation.replicas
    late = [] if replicas is None else [each for each in replicas.lost.values() if _is_late(state, each)]
    if late:
        state.generation.exits.extend(late[0].exits)
        failures.stop_workers(state)


def repeat(state: State, node: int) -> None:
    """Repeat the members for a node that may have missed a change."""
    replicas = state.generation.replicas
    if replicas is not None and replicas.members.epoch:
        state.tell(node, _order(replicas.members))


# --- a group is lost --------------------------------------------------------------------------------------------------


def _lose(state: State, replicas: ReplicaGroups, end: Ended) -> bool:
    """Have the others continue without the rank's group. Returns False where all ranks must stop."""
    replica = replicas.of(end.rank)
    if not _can_go_on(state, replicas, replica, end) or (cause := _curable(state, end)) is None:
        return False
    ranks = set(replicas.ranks(replica))
    ending = (ranks & state.generation.alive) - {end.rank}
    state.generation.alive -= ranks
    state.generation.best_step = max(state.generation.best_step, end.step)
    if state.watch is not None:
        state.watch.ended(ranks)
    lost = replicas.lost[replica] = LostReplica(state.now_s, [end], ending)
    _change(state, replicas, set(replicas.members.replicas) - {replica})
    _note(state, replica, tuple(sorted(ranks)), cause)
    _end_or_start(state, replicas, replica, lost)
    return True


def _can_go_on(state: State, replicas: ReplicaGroups, replica: int, end: Ended) -> bool:
    generation = state.generation
    failed = not end.asked and end.code not in state.agreed_codes and end.rank in generation.alive
    is_undisturbed = (
        not state.preempting and generation.hang is None and generation.corrupted is None and state.pending_end is None
    )
    has_state = len(generation.loaded) == generation.world_size and len(replicas.members.replicas) > 1
    return failed and is_undisturbed and has_state and replica in replicas.members.replicas


def _curable(state: State, end: Ended) -> Cause | None:
    """Return the cause, if starting the ranks again may help; the budget of restarts is charged like a restart of all."""
    hosts = {node: member.host for node, member in state.roster.members.items() if member.host}
    cause = cause_of([end], state.generation.raised, hosts)
    if cause.kind not in _OF_A_PROCESS or cause.final:
        return None
    state.policy.progressed(failures.new_steps(state, cause))
    decision = state.policy.failed(cause, spare_nodes=state.roster.spares())
    if decision.verdict is None and not decision.exclude:
        return cause
    state.generation.decision = decision
    return None


def _ended_in_lost(state: State, replicas: ReplicaGroups, lost: LostReplica, end: Ended) -> None:
    """Count an end in a lost group: one that was waited for, or one of a new rank, whose group starts once more."""
    replica = replicas.of(end.rank)
    if not lost.started:
        lost.ending.discard(end.rank)
    elif end.rank not in lost.gone:
        lost.gone.add(end.rank)
        if end.asked or _curable(state, end) is None:
            state.generation.exits.append(end)
            failures.stop_workers(state)
            return
        lost.exits.append(end)
        lost.ending = set(replicas.ranks(replica)) - lost.gone
        lost.started = 0
    else:
        return
    _end_or_start(state, replicas, replica, lost)


def _end_or_start(state: State, replicas: ReplicaGroups, replica: int, lost: LostReplica) -> None:
    if lost.ending:
        state.tell_all(orders.EndRanks(tuple(sorted(lost.ending))))
        return
    ranks = tuple(replicas.ranks(replica))
    for rank in ranks:
        state.generation.raised.pop(rank, None)
    # Starts differ in it, so that none takes another's messages for its own.
    replicas.starts += 1
    lost.started, lost.ready, lost.gone = replicas.starts, set(), set()
    state.tell_all(orders.RestartRanks(ranks, lost.started))


def _is_late(state: State, lost: LostReplica) -> bool:
    return state.now_s - lost.since_s > state.timeout_s("replica")


def _change(state: State, replicas: ReplicaGroups, members: set[int]) -> None:
    replicas.members = replicas.members.after(members)
    state.tell_all(_order(replicas.members))
    state.note(journal.MembersChanged(replicas.members.epoch, replicas.members.replicas))


def _order(members: Members) -> orders.ChangeMembers:
    return orders.ChangeMembers(members.epoch, members.replicas)


def _note(state: State, replica: int, ranks: tuple[int, ...], cause: Cause) -> None:
    facts = (cause.text, str(cause.kind), cause.fingerprint, cause.rank, cause.node, cause.host, cause.step)
    state.note(journal.ReplicaLost(replica, ranks, *facts))
