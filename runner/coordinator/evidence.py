"""Handles reports of workers and agents: loads, commits, refused checkpoints, exceptions, corruption."""

from dataclasses import replace

from headway.runner.contract import CheckpointId, journal
from headway.runner.coordinator import generations, losses, preemption, replicas
from headway.runner.coordinator.events import (
    CorruptionFound,
    Evidence,
    RankLoaded,
    RankParted,
    RankRaised,
    RankReady,
    RanksUndead,
    ReplicasEqual,
    Reported,
    StopRequested,
    Surveyed,
)
from headway.runner.coordinator.state import State


def take(state: State, event: Evidence) -> None:
    match event:
        case StopRequested(age_s=age_s):
            preemption.preempt(state, age_s)
        case Surveyed(node, _, holdings):
            generations.take_holdings(state, node, holdings)
        case Reported(entry=entry, of_generation=False):
            state.note(with_hosts(state, event, entry))
        case _ if event.generation == state.generation.number:
            take_of_generation(state, event)


def take_of_generation(state: State, event: Evidence) -> None:
    match event:
        case RankLoaded(rank=rank, step=step):
            loaded(state, rank, step)
        case RankReady(rank=rank, start=start):
            replicas.ready(state, rank, start)
        case RankParted(epoch=epoch):
            replicas.parted(state, epoch)
        case RankRaised(rank=rank, raised=raised):
            state.generation.raised[rank] = raised
        case RanksUndead():
            losses.undead(state, event)
        case CorruptionFound():
            corrupted(state, event)
        case ReplicasEqual(step=step):
            state.proven_step = state.committed_step or 0
            state.note(journal.Compared(step, state.proven_step))
        case Reported(entry=journal.Committed() as entry):
            committed(state, entry)
        case Reported(entry=journal.Refused() as entry):
            refused(state, entry)
        case Reported(entry=journal.Unread() as entry):
            unread(state, entry)
        case Reported(entry=entry):
            state.note(entry)


def loaded(state: State, rank: int, step: int) -> None:
    if rank not in state.generation.loaded:
        state.generation.loaded.add(rank)
        if len(state.generation.loaded) == state.generation.world_size:
            state.note(journal.Loaded(step))


def committed(state: State, entry: journal.Committed) -> None:
    if entry.step not in state.generation.committed:
        state.generation.committed.add(entry.step)
        state.committed_step = max(state.committed_step or 0, entry.step)
        state.note(entry)
        state.excuse(f"step {entry.step} is committed")


def refused(state: State, entry: journal.Refused) -> None:
    """Leave a checkpoint out of the next claim that failed verification: the base of this generation."""
    if entry not in state.generation.refused:
        state.generation.refused.append(entry)
        state.refused.add((CheckpointId(entry.step, entry.generation), entry.tier))
        state.note(entry)


def unread(state: State, entry: journal.Unread) -> None:
    """Record that a node could not read the base, which is not damage: no claim may leave it out."""
    node = state.roster.node_of(entry.rank)
    if node not in state.generation.unread:
        state.generation.unread[node] = entry
        state.note(replace(entry, node=node, host=state.roster.host(node)))


def corrupted(state: State, event: CorruptionFound) -> None:
    """Record wrong numbers. Checkpoints since all were last shown to be right do not count any more."""
    if state.generation.corrupted is not None:
        return
    ranks, nodes = state.ranks_and_nodes(event.ranks)
    sound_step = (state.proven_step or 0) if event.sound_step is None else event.sound_step
    hosts = tuple(state.roster.host(node) for node in nodes)
    state.generation.corrupted = journal.Corruption(tuple(ranks), event.found, sound_step, tuple(nodes), hosts)
    state.note(state.generation.corrupted)


def with_hosts(state: State, event: Reported, entry: journal.Entry) -> journal.Entry:
    """Return the entry with the hosts of the ranks that it is about."""
    if not isinstance(entry, journal.Transient | journal.WarmStart) or event.generation != state.generation.number:
        return entry
    _, nodes = state.ranks_and_nodes(entry.ranks)
    return replace(entry, hosts=tuple(state.roster.host(node) for node in nodes))
