"""What follows from a failure: go on here, go on without a suspect, or stop. Pure; the coordinator holds one for an attempt."""

from dataclasses import dataclass

from headway.runner.contract import Exit, Restart
from headway.runner.coordinator.causes import Cause


@dataclass(frozen=True)
class Decision:
    """`verdict` null: start the next generation, without `exclude`d nodes where others can take their slots. `why` is for people."""

    verdict: Exit | None
    why: str
    exclude: tuple[int, ...] = ()


class Policy:
    """The restart budget, what has failed so far, and whom it speaks against."""

    def __init__(self, restart: Restart, *, script: bool, restarts: int = 0) -> None:
        """`restarts` have been used up by an earlier coordinator of this attempt."""
        raise NotImplementedError

    @property
    def restarts(self) -> int:
        """Failures of this attempt after which it went on."""
        raise NotImplementedError

    def progressed(self, new_steps: int) -> None:
        """So many steps were completed that no generation had reached before: gives restarts back."""
        raise NotImplementedError

    def failed(self, cause: Cause, *, spare_nodes: int) -> Decision:
        """A generation has failed. A node that was lost or that spares can replace costs no restart of the budget's."""
        raise NotImplementedError
