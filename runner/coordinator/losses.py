"""Gives nodes up: those that do not answer, those whose ranks SIGKILL does not end, and those that cannot open a socket.

A node that does not answer is only given up if something else indicates that it is dead, and never while training continues.
"""

from collections.abc import Mapping

from headway.runner.contract import journal, set_by
from headway.runner.coordinator import failures, generations, replicas
from headway.runner.coordinator.causes import NODE_LOST
from headway.runner.coordinator.events import DropConnection, RanksUndead
from headway.runner.coordinator.state import ENDED_S, HEARD_S, QUIET_S, REJOIN_S, Phase, State


def check_starting(state: State) -> None:
    """Give slot 0's node up if it cannot open a socket for the rendezvous store of a claimed generation: another node may."""
    first = state.roster.slots[0]
    member = state.roster.members[first]
    if member.connected and member.port is None and state.waited_s > state.timeout_s("listen"):
        state.roster.unfit.add(first)
        where = f"on its own name, {member.host}" if member.host else "on its own name"
        lose(state, first, f"it could not listen {where}, for {state.timeout_s('listen'):.0f} s ({set_by('listen')})")


def check_nodes(state: State) -> None:
    for node, since_s in unreachable(state):
        if (why := why_lost(state, node, since_s)) is not None:
            lose(state, node, why)


def unreachable(state: State) -> list[tuple[int, float]]:
    """Return nodes with a slot that cannot be reached, and since when; none if no node can be, since then this coordinator is cut off."""
    found, heard = [], False
    silent_before_s = heard_since_s(state)
    for node, member in state.roster.members.items():
        if member.gone_at is None and member.heard_at >= silent_before_s:
            heard = True
        elif node in state.roster.slot_of and not member.lost:
            found.append((node, member.heard_at if member.gone_at is None else member.gone_at))
    return found if heard else []


def heard_since_s(state: State) -> float:
    """Return the time after which a node that sent anything counts as present."""
    return state.now_s - max(min(HEARD_S, state.timeout_s("node"), state.timeout_s("node_spare")), 3 * state.vitals.beat_s)


def silent_s(state: State) -> float:
    """Return how long a node may be silent while no rank makes progress; a node that a spare can replace at once is given up sooner."""
    return max(state.timeout_s("node_spare" if state.roster.spares() else "node"), 3 * state.vitals.beat_s)


def why_lost(state: State, node: int, since_s: float) -> str | None:
    """Return why the node is given up; None while it may come back, and always while steps complete."""
    member = state.roster.members[node]
    gone_s, ended = state.now_s - since_s, member.gone_at is not None and not member.unanswered
    if state.adopting and member.presumed:
        return why_not_back(state, node, gone_s)
    how = "its connection ended" if ended else "it stopped sending heartbeats"
    enough_s = ENDED_S if ended else silent_s(state)
    if state.generation.started and state.phase in (Phase.RUNNING, Phase.STOPPING):
        running = state.phase is Phase.RUNNING
        if state.generation.failed_nodes - {node} and gone_s > enough_s:
            return f"{how}, and ranks elsewhere have ended"
        if (
            running
            and state.vitals.is_training
            and gone_s > enough_s
            and state.vitals.quiet_s(state.now_s) > quiet_s(state, ended)
        ):
            return f"{how}, and no rank anywhere makes progress"
        if running and ended and replicas.miss_one(state):
            return f"{how}, and so did those of its ranks with others"
        if running and gone_s > enough_s and replicas.all_lost_on(state, node):
            return f"{how}, and its replica groups were lost before"
        if running and state.vitals.moved_since(since_s) and state.vitals.quiet_s(state.now_s) <= state.timeout_s("agent"):
            return None
    elif gone_s > max(QUIET_S, enough_s) and state.roster.spares():
        return f"{how}, and a spare is there"
    patience_s = state.timeout_s("agent")
    return f"{how}, and it has not reconnected for {patience_s:.0f} s" if gone_s > patience_s else None


def why_not_back(state: State, node: int, gone_s: float) -> str | None:
    """Return why a node is given up that an earlier coordinator knew and that has not found this one yet."""
    if state.generation.failed_nodes - {node} and gone_s > max(ENDED_S, 2 * state.vitals.beat_s):
        return "it has not connected to this coordinator, and ranks elsewhere have ended"
    patience_s = max(REJOIN_S, 3 * state.vitals.beat_s)
    if gone_s > patience_s and state.vitals.quiet_s(state.now_s) > patience_s:
        return f"it has not connected to this coordinator for {patience_s:.0f} s, and no rank anywhere makes progress"
    return None


def quiet_s(state: State, ended: bool) -> float:
    return max(ENDED_S if ended else QUIET_S, state.vitals.usual_quiet_s)


def check_stopping(state: State) -> None:
    """Give nodes up that are connected and whose ranks do not end; `check_nodes` judges those that cannot be reached."""
    grace_s = failures.stop_order(state).grace_s
    if grace_s is None:
        grace_s = state.timeout_s("terminate") if state.is_script else 0.0
    if state.waited_s <= grace_s + state.timeout_s("kill"):
        return
    for node in sorted({state.roster.node_of(rank) for rank in state.generation.alive}):
        member = state.roster.members[node]
        if member.connected and member.heard_at >= heard_since_s(state):
            lose_undying(state, node)


def lose_undying(state: State, node: int) -> None:
    ranks = state.generation.alive.intersection(state.roster.ranks(node))
    states = {rank: state.generation.undead.get(rank) for rank in sorted(ranks)}
    who = ", ".join(f"rank {rank}{f' (state {state})' if state else ''}" for rank, state in states.items())
    why = f"{who} does not exit on SIGKILL, for {state.timeout_s('kill'):.0f} s ({set_by('kill')})"
    state.undying[node] = ranks
    state.roster.unfit.add(node)
    lose(state, node, why, undying=states)


def undead(state: State, event: RanksUndead) -> None:
    """Record ranks that a supervisor has killed and that are still there."""
    known = state.generation.undead
    new = {rank: process for rank, process in event.states.items() if known.get(rank) != process}
    known |= new
    ranks, nodes = state.ranks_and_nodes(sorted(new))
    if ranks:
        state.note(journal.Undead(tuple(ranks), tuple(new[rank] for rank in ranks), tuple(nodes)))
    # An earlier coordinator ordered them to end, and died before they did.
    if ranks and state.phase is Phase.RUNNING and state.generation.started:
        failures.stop_workers(state)


def lose(state: State, node: int, why: str, undying: Mapping[int, str | None] | None = None) -> None:
    """Give a node up. Its ranks count as ended; `undying` ones (with the states of their processes) have outlived SIGKILL."""
    if state.phase is Phase.ENDED:
        return
    ranks = None if undying is None else tuple(undying)
    state.note(journal.LostNode(why, node, state.roster.host(node), ranks))
    if state.roster.members[node].gone_at is None:
        state.actions.append(DropConnection(node))
    state.roster.lose(node)
    state.gave_up[node] = why
    if state.generation.started and state.phase in (Phase.RUNNING, Phase.STOPPING):
        if undying is None:
            replicas.node_lost(state, node, f"{NODE_LOST}: {why}")
        else:
            # They were stopped for something else, which is the cause.
            failures.ranks_lost_with(state, node, "does not exit on SIGKILL", asked=True)
    elif state.phase is Phase.RUNNING:
        # The generation is claimed and not started yet.
        generations.go_on(state)
    elif state.phase is Phase.SURVEYING:
        generations.survey_answered(state, node)
