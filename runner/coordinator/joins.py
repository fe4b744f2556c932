"""Handles a node that joins, for the first time or again, and a coordinator that takes over a running generation."""

from headway.runner.contract import journal, orders
from headway.runner.coordinator import failures, fitness, generations, replicas
from headway.runner.coordinator.causes import STARTED_ANEW
from headway.runner.coordinator.events import Joined, Send
from headway.runner.coordinator.state import Phase, ReplicaGroups, State


def presume_running(state: State) -> None:
    """Presume that the newest generation, which was started, runs, until its nodes report otherwise."""
    state.phase, state.adopting = Phase.RUNNING, True
    state.generation.started = True
    state.generation.world_size = state.roster.world_size
    state.generation.alive = set(range(state.generation.world_size))
    state.generation.replicas = ReplicaGroups.of_earlier_coordinator(state.config, state.inherited_members)
    generations.watch_generation(state)


def joined(state: State, event: Joined) -> None:
    if event.generation > state.generation.number and event.running and state.generation.number:
        # A newer coordinator has started it, and this one will learn that from the chain.
        return
    before = state.roster.members.get(event.node)
    state.roster.joined(event, state.now_s)
    if gone := state.undying.get(event.node, set()) - set(event.running):
        fitness.ranks_gone(state, event.node, gone)
    if event.port is not None:
        fitness.listens(state, event.node)
    is_bound, is_newest = event.node in state.roster.slot_of, event.generation == state.generation.number
    state.generation.known |= is_newest
    if event.running and not (is_newest and is_bound and state.generation.started and not (before and before.lost)):
        state.actions.append(Send(event.node, event.generation, orders.Stop()))
    if state.phase is Phase.GATHERING:
        generations.gather(state)
        return
    generations.assign(state, event.node)
    if state.phase is Phase.REPLACING:
        generations.go_on(state)
    elif is_bound:
        welcome_back(state, event, None if before is None else before.generation)
    elif could_be_larger(state):
        state.generation.regroups = True
        state.note(journal.Regroup(event.node, event.host))
        failures.stop_workers(state)
    replicas.joined(state, event.node, event.running)


def welcome_back(state: State, event: Joined, knew: int | None) -> None:
    """Repeat what a node with a slot has missed while it was not connected; ranks that it has lost count as ended.

    `knew` is the newest generation that it had reported before.
    """
    if state.generation.started and event.generation < state.generation.number:
        never_told = knew is not None and knew < state.generation.number
        if never_told and state.phase is Phase.RUNNING and state.generation.order is not None:
            start_again(state, event.node, state.generation.order)
        else:
            replicas.node_lost(state, event.node, STARTED_ANEW)
    replicas.repeat(state, event.node)
    if state.phase is Phase.SURVEYING and event.node not in state.holdings:
        # The slots may have been bound again just now.
        if event.node in state.roster.slot_of:
            state.unsurveyed.add(event.node)
        state.tell(event.node, orders.Survey())
    if state.phase is Phase.STOPPING:
        state.tell(event.node, failures.stop_order(state))
    elif state.phase is Phase.RUNNING and state.generation.started and state.preempting:
        state.tell(event.node, orders.Save())
    elif state.phase is Phase.RUNNING and not state.generation.started:
        generations.start(state)
    adopt(state, event)


def start_again(state: State, node: int, order: orders.StartRanks) -> None:
    """Repeat the order to start, which was lost with the connection that it was sent on."""
    if node == state.roster.slots[0]:
        generations.lend_port(state, state.roster.members[node])
    state.tell(node, order)


def adopt(state: State, event: Joined) -> None:
    """Adopt the generation of an earlier coordinator once all nodes have reported that it runs."""
    if set(event.running) != set(state.roster.ranks(event.node)):
        state.adopting = False
    if state.adopting and not state.roster.away and state.phase is Phase.RUNNING:
        state.adopting = False
        state.note(journal.Adopted())
        if state.misses_replicas:
            # What its processes were doing died with the coordinator that had started them.
            state.generation.regroups = True
            failures.stop_workers(state)


def could_be_larger(state: State) -> bool:
    running = state.phase is Phase.RUNNING and state.generation.started and not state.preempting
    return running and len(state.roster.slots) < state.config.slots and state.roster.can_grow()
