"""Lets a node compute again that could not: its socket opens, or the ranks that SIGKILL did not end are gone."""

from collections.abc import Iterable

from headway.runner.coordinator import generations
from headway.runner.coordinator.state import Phase, State


def listens(state: State, node: int) -> None:
    """Count a node in again whose socket is open."""
    if node in state.roster.unfit and node not in state.undying:
        fit_again(state, node)


def fit_again(state: State, node: int) -> None:
    state.roster.unfit.discard(node)
    if state.phase is Phase.REPLACING:
        generations.go_on(state)


def ranks_gone(state: State, node: int, ranks: Iterable[int]) -> None:
    """Count a node in again once all ranks are gone that SIGKILL did not end."""
    if (left := state.undying.get(node)) is None:
        return
    left.difference_update(ranks)
    if not left:
        del state.undying[node]
        fit_again(state, node)
