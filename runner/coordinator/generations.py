"""Binds slots to nodes, claims a generation, and starts it.

gather -> rebind -> next_generation -> (survey) -> make_claim -> claimed -> start
"""

from collections.abc import Iterable

import xxhash

from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import CheckpointId, Exit, RunConfig, journal, orders, set_by
from headway.runner.coordinator import ending
from headway.runner.coordinator.events import Claimed, MakeClaim
from headway.runner.coordinator.roster import Member
from headway.runner.coordinator.state import Generation, Phase, ReplicaGroups, State

# The journal's start lists the hosts of so many nodes at most; of larger jobs it lists the slots that moved.
NODES_LISTED = 256


def assign(state: State, node: int) -> None:
    state.tell(node, orders.Assign(state.roster.slot_of.get(node)))


def lend_port(state: State, member: Member) -> None:
    # A port that was given serves the next rendezvous too.
    if not state.config.ports.store:
        member.lends_port()


def gather(state: State) -> None:
    """Bind the slots once the node of each has joined; after the last call, whatever can be bound.

    An earlier coordinator may have bound them already; then there is no wait.
    """
    if state.roster.slots:
        begin_with_present(state)
    if state.phase is not Phase.GATHERING or len(state.roster.members) < state.roster.least_slots:
        return
    if state.enough_since_s is None and state.roster.can_bind():
        state.enough_since_s = state.now_s
    called = state.enough_since_s is not None and state.now_s - state.enough_since_s >= state.timeout_s("last_call")
    if called or (len(state.roster.members) >= state.config.slots and state.roster.is_at_home()):
        begin_with_present(state)


def begin_with_present(state: State) -> None:
    if not rebind(state):
        # Some of those that were enough have gone again.
        state.enough_since_s = None
        return
    for node in state.roster.members:
        assign(state, node)
    next_generation(state)


def rebind(state: State) -> bool:
    """Bind the slots; return False if too few nodes are left."""
    first = not state.roster.slots
    moved = state.roster.bind()
    if moved is None:
        return False
    for move in moved:
        if not first or move.slot != move.node:
            state.note(journal.Rebound(move.slot, move.before, move.node, move.outside, state.roster.host(move.node)))
    return True


def go_on(state: State) -> None:
    """Claim the next generation on the nodes that are there, or start the one that was claimed; if they are too few, wait for one."""
    if not rebind(state):
        if state.phase is not Phase.REPLACING:
            state.enter(Phase.REPLACING)
            check_replacing(state)
    elif state.claim_stands and not state.generation.started:
        state.enter(Phase.RUNNING)
        start(state)
    else:
        next_generation(state)


def check_gathering(state: State) -> None:
    gather(state)
    joined, patience_s = len(state.roster.members), state.timeout_s("join")
    if state.phase is Phase.GATHERING and state.waited_s > patience_s:
        silent = sorted(set(range(state.config.slots)) - {n for n, m in state.roster.members.items() if m.connected})
        node = silent[0] if silent else None
        here = ", ".join(sorted(filter(None, map(state.roster.host, state.roster.members))))
        why = f"{joined} of {state.config.slots} nodes joined ({here}); silent: {silent}"
        ending.give_up(state, why if here else f"no node joined; silent: {silent}", node, silent)


def check_replacing(state: State) -> None:
    if state.waited_s >= state.timeout_s("replace"):
        node = min(state.gave_up, default=None)
        ending.give_up(state, "too few nodes are left", node, state.gave_up)


def check_claiming(state: State) -> None:
    if state.waited_s > state.timeout_s("store"):
        waited = f"{state.timeout_s('store'):.0f} s ({set_by('store')})"
        why = f"the store has not answered for {waited}, and there is no valid claim"
        ending.end_without_claim(state, Exit.RETRY_ELSEWHERE, why)


def watch_generation(state: State) -> None:
    base_step = state.generation.base.step if state.generation.base is not None and not state.is_script else 0
    state.vitals.begin(state.now_s, base_step, adopted=state.adopting)
    state.watch = state.make_watch(state.generation.world_size, state.timeouts, state.now_s)


def next_generation(state: State) -> None:
    """Claim the next generation. If captures are kept in memory, first ask the nodes which ones are left."""
    if not state.keeps_copies or state.generation.number == 0:
        make_claim(state)
        return
    state.holdings = {}
    state.unsurveyed = {node for node in state.roster.slot_of if not state.roster.members[node].lost}
    state.enter(Phase.SURVEYING)
    state.tell_all(orders.Survey())


def take_holdings(state: State, node: int, holdings: tuple[Holding, ...]) -> None:
    if state.phase is Phase.SURVEYING:
        state.holdings[node] = holdings
        survey_answered(state, node)


def survey_answered(state: State, node: int) -> None:
    """Stop waiting for this node's answer; claim once all have answered."""
    state.unsurveyed.discard(node)
    if not state.unsurveyed:
        make_claim(state)


def make_claim(state: State) -> None:
    state.enter(Phase.CLAIMING)
    whole = whole_captures(state.config, state.holdings.values())
    held = {checkpoint: hashed for checkpoint, hashed in whole.items() if (checkpoint, "memory") not in state.refused}
    state.actions.append(MakeClaim(frozenset(state.refused), held, sound_step(state)))


def sound_step(state: State) -> int | None:
    """Return the step after which no checkpoint counts that was saved so far; None if all count."""
    return None if state.generation.corrupted is None else state.generation.corrupted.sound_step


def claimed(state: State, event: Claimed) -> None:
    state.generation, state.claim_stands, state.watch = Generation(event.generation, event.base), True, None
    state.committed_step = event.base.step if event.base else None
    begins_at = state.committed_step or 0
    state.proven_step = begins_at if state.proven_step is None else min(state.proven_step, begins_at)
    base = event.base
    state.note(journal.Claim(journal.ClaimedBase(base.step, base.generation, base.tier) if base else None))
    if state.pending_end is not None:
        pending = state.pending_end
        ending.end_attempt(state, pending.exit_code, pending.why, pending.cause, pending.suspects)
        return
    if state.saves_on_chain and event.idle > state.config.restart.no_progress + state.config.restart.budget:
        ending.end_attempt(state, Exit.STOP, f"{event.idle - 1} generations in a row have saved nothing")
        return
    if any(state.roster.members[node].lost for node in state.roster.away):
        go_on(state)
        return
    state.enter(Phase.RUNNING)
    start(state)


def start(state: State) -> None:
    """Start every slot once all are connected and slot 0's node has opened the socket of this generation's rendezvous store."""
    first = state.roster.members[state.roster.slots[0]]
    if first.port is None or state.roster.away or state.generation.started:
        return
    base = state.generation.base
    order = orders.StartRanks(
        slots=len(state.roster.slots),
        moved=tuple(state.roster.moved),
        master_addr=first.address,
        master_port=first.port,
        restarts=state.policy.restarts,
        base=base,
    )
    lend_port(state, first)
    state.generation.started, state.generation.known, state.generation.order = True, True, order
    state.generation.world_size = state.roster.world_size
    state.generation.alive = set(range(state.generation.world_size))
    state.generation.replicas = ReplicaGroups.of_new_generation(state.config)
    state.gave_up, state.failure, state.adopting = {}, None, False
    watch_generation(state)
    note_start(state, order)
    state.tell_all(order)
    if state.preempting:
        state.tell_all(orders.Save())


def note_start(state: State, order: orders.StartRanks) -> None:
    """Write the line from which the next coordinator learns the binding."""
    listed = state.roster.slots if len(state.roster.slots) <= NODES_LISTED else dict(state.roster.moved)
    nodes = tuple(journal.PlacedNode(slot, node, state.roster.host(node)) for slot, node in listed.items())
    state.note(journal.Start(nodes, state.generation.world_size, order.slots, order.moved, order.restarts))


def whole_captures(config: RunConfig, holdings: Iterable[Iterable[Holding]]) -> dict[CheckpointId, str]:
    """Return the captures of which some node holds every rank's part, with the hash of the manifest that follows from the parts."""
    parts: dict[CheckpointId, dict[int, str]] = {}
    for held in holdings:
        for capture in held:
            checkpoint = CheckpointId(capture.step, capture.generation)
            parts.setdefault(checkpoint, {})[capture.rank] = capture.part_xxh3_128
    found = {}
    for checkpoint, by_rank in parts.items():
        if by_rank.keys() == set(range(config.mesh.world_size)) and config.run is not None:
            manifest = memory_manifest(config.run, checkpoint, config.mesh, [by_rank[rank] for rank in sorted(by_rank)])
            found[checkpoint] = xxhash.xxh3_128_hexdigest(manifest)
    return found
