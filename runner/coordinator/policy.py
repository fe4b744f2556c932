"""Decides what follows from a failure: restart here, restart without a suspect, or stop. Pure; one instance per attempt."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.runner.contract import CauseKind, Exit, Restart
from headway.runner.coordinator.causes import Cause

FAULTY: Mapping[CauseKind, str] = {CauseKind.HARDWARE: "must be reset", CauseKind.CORRUPTION: "computes wrong values"}
# As `refill_steps`: a budget that counts every failure, torchrun's --max-restarts.
NEVER_REFILLED = sys.maxsize


@dataclass(frozen=True)
class RestartDecision:
    """`verdict` null: start the next generation, without `exclude`d nodes where others can take their slots. `why` is for people."""

    verdict: Exit | None
    why: str
    exclude: tuple[int, ...] = ()


class Policy:
    """The restart budget, and the failures so far with their suspects.

    With a budget that is never refilled, every failure but a node's loss costs one restart, as under torchrun, whatever its cause.
    """

    def __init__(self, restart: Restart, *, script: bool, restarts: int = 0, batch_samples: int | None = None) -> None:
        """`restarts` have been used up by an earlier coordinator of this attempt. `batch_samples` are those of one optimizer step."""
        self._restart = restart
        self._is_script = script
        self._batch_samples = batch_samples
        self._judges = restart.refill_steps < NEVER_REFILLED
        self._budget = max(0, restart.budget - restarts)
        self._restarts = restarts
        # New steps that have not given a restart back yet.
        self._toward_refill = 0
        self._fruitless = 0  # failures in a row without a new step
        # Whether there were new steps since the last failure.
        self._is_further = False
        self._failures: list[Cause] = []

    @property
    def judges(self) -> bool:
        """Whether anything follows from what a failure was."""
        return self._judges

    @property
    def restarts(self) -> int:
        """Failures of this attempt after which it continued."""
        return self._restarts

    @property
    def budget(self) -> int:
        """Restarts that are left."""
        return self._budget

    def progressed(self, new_steps: int) -> None:
        """So many steps were completed that no generation had reached before: gives restarts back."""
        if new_steps <= 0:
            return
        self._fruitless, self._is_further = 0, True
        refilled, self._toward_refill = divmod(self._toward_refill + new_steps, self._restart.refill_steps)
        self._budget = min(self._restart.budget, self._budget + refilled)

    def failed(self, cause: Cause, *, spare_nodes: int) -> RestartDecision:
        """A generation has failed, and `progressed` knows its new steps. A node that was lost or that spares can replace costs no restart
        of the budget's."""
        self._failures.append(cause)
        is_further, self._is_further = self._is_further, False
        if cause.final:
            return RestartDecision(Exit.STOP, cause.text)
        if cause.kind is CauseKind.NODE_LOST and (spare_nodes or not self._judges):
            return self._go_on("its node is replaced, which costs no restart")
        if self._judges and cause.kind in FAULTY and cause.node is not None:
            return self._without_node(cause, cause.node, spare_nodes)
        if self._judges and (why := self._hopeless(cause)):
            return RestartDecision(Exit.STOP, why)
        if self._judges and cause.node is not None and spare_nodes and (why := self._speaks_against_node(cause)):
            return self._go_on(why, (cause.node,))
        return self._charged(cause, is_further)

    def _go_on(self, why: str, exclude: tuple[int, ...] = ()) -> RestartDecision:
        self._restarts += 1
        return RestartDecision(None, why, exclude)

    def _without_node(self, cause: Cause, node: int, spare_nodes: int) -> RestartDecision:
        """Exclude the node of a broken device: one that must be reset fails every start while the job holds it, and one that computes
        wrongly would spoil every further step."""
        if not spare_nodes:
            return RestartDecision(Exit.RETRY_ELSEWHERE, cause.text)
        return self._go_on(
            f"{cause.host or f'node {node}'} has a device that {FAULTY[cause.kind]}: a spare takes its place", (node,)
        )

    def _charged(self, cause: Cause, is_further: bool) -> RestartDecision:
        """Continue at the cost of a restart, or end the attempt."""
        self._fruitless += not is_further
        if self._judges and self._fruitless >= self._restart.no_progress:
            why = f"{self._fruitless} failures in a row without a new step; the last: {cause.text}"
            return RestartDecision(Exit.RETRY_ELSEWHERE if cause.kind is CauseKind.CORRUPTION else Exit.STOP, why)
        if self._budget <= 0:
            why = f"no restart left in the budget of {self._restart.budget}; {cause.text}"
            return RestartDecision(Exit.STOP if self._is_script else Exit.RETRY_ELSEWHERE, why)
        self._budget -= 1
        return self._go_on(f"{self._budget} of {self._restart.budget} restarts left")

    # --- repeated failures -------------------------------------------------------------------------------------------

    def _hopeless(self, cause: Cause) -> str | None:
        """Why a further start would end the same way; None while it may not."""
        if cause.outside:
            return None
        same = [each for each in self._failures if (each.fingerprint, each.step) == (cause.fingerprint, cause.step)]
        if len(same) < self._times_enough(cause, same):
            return None
        when = f"at step {cause.step:,}" if cause.step else "before the first step"
        return f"{_times(same)} {when}: {cause.text}; {self._advice(cause)}"

    def _times_enough(self, cause: Cause, same: Sequence[Cause]) -> int:
        """Return how often a failure must repeat at the same step until it counts as deterministic.

        Twice where a fresh start was tried already (memory, which a fresh process had whole; a value that was computed again; an
        exception before the first step) or on another node too, else three times. A script counts its steps from each of
        its starts, so the same number may be progress, which only a third time rules out.
        """
        if self._is_script and cause.step:
            return 3
        if cause.kind in (CauseKind.OUT_OF_MEMORY, CauseKind.NAN) or (cause.kind is CauseKind.USER_ERROR and not cause.step):
            return 2
        return 2 if len({each.node for each in same}) > 1 else 3

    def _advice(self, cause: Cause) -> str:
        """Return the hint for a failure of every start."""
        if cause.kind is CauseKind.OUT_OF_MEMORY:
            return "a fresh process had all of the memory: reduce its use (smaller micro batch, more sharding, recomputation)"
        if not cause.step or self._is_script:
            return "it would happen again: fix the script or its data"
        sample = "" if cause.sample is None else f" (from sample {cause.sample:,})"
        skip = "..." if self._batch_samples is None else str(self._batch_samples)
        entry = f"{{from_step: {cause.step}, skip_samples: {skip}}}"
        return f"the batch{sample} or the code is at fault; to skip the batch, add to `history`: {entry}"

    def _speaks_against_node(self, cause: Cause) -> str | None:
        """Return why the failed node should be excluded: after two failures at different steps it is a suspect; after two at one step,
        another node shows whether it is the node or the batch."""
        if cause.kind not in (CauseKind.CRASH, CauseKind.HANG, CauseKind.USER_ERROR):
            return None
        before = [each for each in self._failures[:-1] if each.node == cause.node and each.kind is not CauseKind.PREEMPTION]
        who = cause.host or f"node {cause.node}"
        if any(each.step != cause.step for each in before if each.kind in (CauseKind.CRASH, CauseKind.HANG, CauseKind.NODE_LOST)):
            return f"{who} has failed at different steps: a spare takes its place"
        if any((each.fingerprint, each.step) == (cause.fingerprint, cause.step) for each in before) and not cause.outside:
            return f"{who} has failed twice at step {cause.step:,}: a spare will show whether the node or the batch is at fault"
        return None


def _times(same: Sequence[Cause]) -> str:
    """`the same failure 3 times on 2 nodes (a, b)`."""
    names = sorted({each.host or f"node {each.node}" for each in same if each.node is not None})
    where = f" on {len(names)} nodes ({', '.join(names)})" if len(names) > 1 else ""
    return f"the same failure {len(same)} times{where}"
