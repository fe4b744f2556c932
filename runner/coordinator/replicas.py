"""Has the other replica groups train on while a lost one starts again.

lost -> its other ranks end -> its ranks start -> ready -> a member again

A group is lost with its first rank that ends, or with a node. The others get the new members at once, agree on the step and divide its
share of the batch; its new ranks are members again when all of them are ready to take the state from another group's memory. In place
of a lost node they start on a spare, or on the node when it is back. All ranks restart instead, as without replica recovery, if no
other group has the state, if something other than a process or a node failed, or if the group does not come back in time.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace

from headway.runner.contract import CauseKind, Members, journal, orders
from headway.runner.coordinator import failures
from headway.runner.coordinator.causes import Cause, Ended, cause_of
from headway.runner.coordinator.events import Exited
from headway.runner.coordinator.state import LostReplica, Phase, ReplicaGroups, State

# Causes that end with the process that they end: a device, a node or the numbers are not mended by another start in the same place.
_OF_A_PROCESS = frozenset({CauseKind.CRASH, CauseKind.OUT_OF_MEMORY})
_WITH_NODE = frozenset({CauseKind.NODE_LOST})


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


def node_lost(state: State, node: int, how: str) -> None:
    """Lose the replica groups of a lost node's ranks; all ranks stop where the others cannot continue without them."""
    replicas = state.generation.replicas
    if replicas is None:
        failures.ranks_lost_with(state, node, how)
        return
    gone = [rank for rank in state.roster.ranks(node) if _is_there(replicas, rank)]
    if not gone:
        return
    end = Ended(gone[0], node, -9, how, asked=False, step=state.generation.best_step)
    hit = {replicas.of(rank): end._replace(rank=rank) for rank in reversed(gone)}
    if not _can_go_on_without(state, replicas, node, hit.keys()) or (cause := _curable(state, end, _WITH_NODE)) is None:
        failures.ranks_lost_with(state, node, how)
        return
    _leave(state, replicas, {replica: each for replica, each in hit.items() if replica not in replicas.lost}, cause)
    for replica, each in hit.items():
        lost = replicas.lost[replica]
        if lost.started:
            lost.exits.append(each)
            lost.ending, lost.started = set(replicas.ranks(replica)) - lost.gone, 0
        lost.ending -= set(gone)
        _end_or_start(state, replicas, replica, lost)


def parted(state: State, epoch: int) -> None:
    """Record that a collective between groups has failed: evidence against a node that cannot be reached."""
    if (replicas := state.generation.replicas) is not None:
        replicas.parted = max(replicas.parted, epoch)


def miss_one(state: State) -> bool:
    """Whether a group has found another one gone, and the members are still the same."""
    replicas = state.generation.replicas
    return replicas is not None and replicas.parted == replicas.members.epoch


def joined(state: State, node: int, running: Collection[int]) -> None:
    """Start groups that have waited for a node, once what still runs on it has ended."""
    replicas = state.generation.replicas
    if replicas is None or state.phase is not Phase.RUNNING:
        return
    for replica, lost in replicas.lost.items():
        if not lost.started:
            lost.ending |= set(replicas.ranks(replica)) & set(state.roster.ranks(node)) & set(running)
            _end_or_start(state, replicas, replica, lost)


def all_lost_on(state: State, node: int) -> bool:
    """Whether the node computes, and only for groups that are lost, so that no training shows that it is alive."""
    replicas, ranks = state.generation.replicas, state.roster.ranks(node)
    return replicas is not None and bool(ranks) and all(replicas.of(rank) in replicas.lost for rank in ranks)


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
    failed = not end.asked and end.code not in state.agreed_codes and end.rank in state.generation.alive
    if not failed or not _has_state_without(state, replicas, {replica}) or (cause := _curable(state, end, _OF_A_PROCESS)) is None:
        return False
    _leave(state, replicas, {replica: end}, cause)
    _end_or_start(state, replicas, replica, replicas.lost[replica])
    return True


def _leave(state: State, replicas: ReplicaGroups, ends: Mapping[int, Ended], cause: Cause) -> None:
    """Have the others continue without these groups, by the ends with which they are lost."""
    for replica, end in ends.items():
        ranks = set(replicas.ranks(replica))
        ending = (ranks & state.generation.alive) - {end.rank}
        state.generation.alive -= ranks
        state.generation.best_step = max(state.generation.best_step, end.step)
        if state.watch is not None:
            state.watch.ended(ranks)
        replicas.lost[replica] = LostReplica(state.now_s, [end], ending)
    if ends:
        _change(state, replicas, set(replicas.members.replicas) - ends.keys())
    for replica in ends:
        _note(state, replica, tuple(replicas.ranks(replica)), cause)


def _has_state_without(state: State, replicas: ReplicaGroups, leaving: Set[int]) -> bool:
    """Whether other groups than those that leave have the state, and nothing else has happened to the run."""
    generation, members = state.generation, set(replicas.members.replicas)
    is_undisturbed = (
        not state.preempting and generation.hang is None and generation.corrupted is None and state.pending_end is None
    )
    are_loaded = len(generation.loaded) == generation.world_size
    return is_undisturbed and are_loaded and leaving <= members | replicas.lost.keys() and bool(members - leaving)


def _is_there(replicas: ReplicaGroups, rank: int) -> bool:
    """Whether a process of the rank is not known to have ended."""
    lost = replicas.lost.get(replicas.of(rank))
    return lost is None or rank in lost.ending or (lost.started > 0 and rank not in lost.gone)


def _can_go_on_without(state: State, replicas: ReplicaGroups, node: int, groups: Set[int]) -> bool:
    config = state.config
    # The first one serves the generation's store. Ranks that run do not learn of another partner for their copies.
    can_move = node != state.roster.slots[0] and not config.segment_required and not config.checkpoint.has("peer")
    is_known = state.generation.order is not None and state.phase is Phase.RUNNING
    return is_known and can_move and _has_state_without(state, replicas, groups)


def _curable(state: State, end: Ended, kinds: Set[CauseKind]) -> Cause | None:
    """Return the cause, if starting the ranks again may help; the budget of restarts is charged like a restart of all."""
    hosts = {node: member.host for node, member in state.roster.members.items() if member.host}
    cause = cause_of([end], state.generation.raised, hosts)
    if cause.kind not in kinds or cause.final:
        return None
    state.policy.progressed(failures.new_steps(state, cause))
    decision = state.policy.failed(cause, spare_nodes=len(state.roster.spares()))
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
        if end.asked or _curable(state, end, _OF_A_PROCESS) is None:
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
    if not _have_nodes(state, replicas, ranks):
        return
    for rank in ranks:
        state.generation.raised.pop(rank, None)
    # Starts differ in it, so that none takes another's messages for its own.
    replicas.starts += 1
    lost.started, lost.ready, lost.gone = replicas.starts, set(), set()
    state.tell_all(orders.RestartRanks(ranks, lost.started))


def _have_nodes(state: State, replicas: ReplicaGroups, ranks: Iterable[int]) -> bool:
    """Give the ranks spares in place of lost nodes. Returns False while there is none for one of them."""
    generation = state.generation
    for move in state.roster.replace():
        host = state.roster.host(move.node)
        state.note(journal.Rebound(move.slot, move.before, move.node, move.outside, host, running=True))
        replicas.untold.add(move.node)
    nodes = {state.roster.node_of(rank) for rank in ranks}
    if any(state.roster.members[node].lost for node in nodes):
        return False
    for node in sorted(nodes):
        if node in replicas.untold or state.roster.members[node].generation < generation.number:
            _tell_newcomer(state, replicas, node)
    return True


def _tell_newcomer(state: State, replicas: ReplicaGroups, node: int) -> None:
    """Have a node take its slot in the generation that runs."""
    generation = state.generation
    if generation.order is None:
        return
    generation.order = replace(generation.order, moved=tuple(state.roster.moved))
    state.tell(node, orders.TakeSlot(**vars(generation.order)))
    state.tell(node, _order(replicas.members))
    replicas.untold.discard(node)
    state.roster.members[node].generation = generation.number


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
