"""Trains so that a lost replica group does not stop the others: they divide its share of the batch until it is back.

The loop is that of `Trainer`. In addition it can give up a step, which is then computed by other groups, and it takes in a group that
returns, at a step's end, from another one's memory. Checkpoints are saved while all groups are there; a save that is due waits for that.
"""

import math
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headway.runner.boot.heartbeat import HeartbeatReporter, in_section
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Exit
from headway.runner.corruption import CorruptionError
from headway.runner.lines import cut_torn_line, read_last
from headway.runner.train.gradients import Gradients, StepConsensus
from headway.runner.train.job import Job
from headway.runner.train.main import Trainer
from headway.runner.train.optimizer import clip_gradients
from headway.runner.train.parallel import RankMesh, sync_gradients
from headway.runner.train.replicas import ReplicaChangeError, ReplicaLink, ReplicaState, succeeds
from headway.runner.train.state import Consumed
from headway.runner.train.trace import Trace
from headway.runner.worker import Worker

_MASK = (1 << 64) - 1
# Of metrics.jsonl: several lines.
_TAIL_BYTES = 4096


@dataclass
class SharedConsumed(Consumed):
    """The samples of all ranks, which every rank has: those of a lost group are not lost with it."""

    def total(self, ranks: Ranks) -> Consumed:
        return self


@dataclass
class ReplicaGradients(Gradients):
    """Gradients of all groups' shares, summed over the groups that are there. `of` raises ReplicaChangeError when one of them is lost."""

    replicas: ReplicaLink = field(kw_only=True)
    # Whether `.grad` has the sum over the groups, clipped.
    summed: bool = False
    # The digest of the samples before this step.
    before: int = 0
    # By then some rank had seen other members: they change after this step.
    members_changed: bool = False
    _losses: tuple[float, ...] = ()

    def _computed(self, job: Job, shift: int, trace: Trace | None) -> tuple[float, float]:
        """Return this rank's loss and the norm of the gradient of all, which is clipped."""
        self.summed, self.before = False, self.state.consumed.digest
        each = job.batch.global_sequences // (job.batch.micro_sequences * self.mesh.shares)
        if not self._parts.training:
            self._parts.train()
        total, loss = dict[int, torch.Tensor](), 0.0
        parameters = self._parameters
        for replica, rounds in self.replicas.rounds(each):
            # Summed apart, as the lost group would have: then two groups end with the same bits as if none had been lost.
            loss += self._backward(job, replica, rounds, each)
            for index, parameter in enumerate(parameters):
                if (gradient := parameter.grad) is not None:
                    total[index] = total[index].add_(gradient) if index in total else gradient
                    parameter.grad = None
        for index, gradient in total.items():
            parameters[index].grad = gradient
        shards = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in total.values()]
        self.replicas.sum(shards)
        torch._foreach_div_(shards, self.replicas.count)
        norm = float(clip_gradients(self._parts, job.optimizer.clip_norm, self.state.device))
        self.summed = True
        return loss, norm

    def warm_up(self, job: Job) -> None:
        """Compute the first round of this group's share."""
        self._parts.train()
        self._backward(job, self.replicas.replica, [0], 1)

    def _backward(self, job: Job, replica: int, rounds: Sequence[int], each: int) -> float:
        """Compute rounds of a group's share. Return their part of its loss."""
        share = replica * self.mesh.degrees.dp_shard + self.mesh.at["dp_shard"]
        loss = torch.zeros((), device=self.state.device)
        for index in rounds:
            sync_gradients(self._parts, job.execution, is_last=index == rounds[-1])
            with in_section("data"):
                micro = self._micro_batch(job, index, share)
            part = self._loss(micro) / each
            torch.autograd.backward(part)
            loss += part.detach()
        return float(loss)

    def _agree(self, job: Job, loss: float, norm: float, flags: Sequence[bool]) -> StepConsensus:
        """Agree with all ranks on the step. Only the first attempt includes flags."""
        bits = sum(flag << place for place, flag in enumerate((self.replicas.is_overtaken, *flags)))
        bad = not (math.isfinite(loss) and math.isfinite(norm))
        took = (self.state.consumed.digest - self.before) & _MASK
        heard = [_RESULT.unpack(raw) for raw in self.replicas.exchange(_RESULT.pack(loss, bad, bits, took))]
        self._losses = tuple(each[0] for each in heard)
        self.state.consumed.digest = (self.before + sum(each[3] for each in heard)) & _MASK
        self.members_changed, *raised = (any(each[2] >> place & 1 for each in heard) for place in range(1 + len(flags)))
        return StepConsensus(
            sum(self._losses) / self.worker.world_size, norm, not any(each[1] for each in heard), True, tuple(raised)
        )

    def _not_finite(self, loss: float, norm: float) -> str:
        ranks = [f"{value} on rank {rank}" for rank, value in zip(self._ranks_of_losses(), self._losses, strict=True)]
        found = [text for text, value in zip(ranks, self._losses, strict=True) if not math.isfinite(value)]
        return f"loss {', '.join(found)}" if found else f"gradient norm {norm}, every loss finite"

    def _ranks_of_losses(self) -> list[int]:
        size = self.replicas.size
        return [replica * size + inner for replica in self.replicas.members.replicas for inner in range(size)]


# Loss, whether it or the norm is not finite, flags, and the digest of the samples.
_RESULT = struct.Struct("<d?QQ")


class ReplicaTrainer(Trainer):
    """One rank's training loop, in a replica group that can survive the others."""

    state_is_missing: bool
    # A group that returns has none until all groups are there.
    _has_saver = False

    def __init__(self, worker: Worker, job: Job, signs: HeartbeatReporter) -> None:
        signs.base("rendezvous")
        if worker.rank == 0:
            worker.say("section", name="rendezvous")
        self.replicas = ReplicaLink(worker, job.config)
        self.replicas.join_own(job.config.backend)
        # A group that was lost has no state until it gets another one's.
        self.state_is_missing = self.replicas.start > 0
        self._stop, self._postponed, self._due = False, set[str](), set[str]()
        # The step of the last save to each tier that has not ended well, as far as this rank knows.
        self._unsaved: dict[str, int] = {}
        # The last step that this rank applied, and whether its saves are open.
        self._applied: StepConsensus | None = None
        self._saves = False
        super().__init__(worker, job, signs)

    def _ranks(self) -> Ranks:
        if self.state_is_missing:
            return self.replicas.own
        self.replicas.begin()
        assert self.replicas.everyone is not None  # noqa: S101  a generation begins with all groups
        return self.replicas.everyone

    def _open_saver(self) -> None:
        if not self.state_is_missing:
            super()._open_saver()
            self._has_saver = True

    @property
    def _is_superseded(self) -> bool:
        return self._has_saver and super()._is_superseded

    def _report_all(self) -> None:
        if self._has_saver:
            super()._report_all()

    def _report_save(self, outcome: SaveOutcome) -> None:
        super()._report_save(outcome)
        if outcome.error is None and self._unsaved.get(outcome.tier) == outcome.step:
            del self._unsaved[outcome.tier]

    def _mesh(self) -> RankMesh:
        return self.replicas.own_mesh(self.device.type, self.job)

    def _gradients_of_rank(self) -> Gradients:
        return ReplicaGradients(self.worker, self.state, self.corpus, self.ranks, self.mesh, replicas=self.replicas)

    @property
    def _is_first(self) -> bool:
        return self.replicas.is_first

    @property
    def _of_step(self) -> ReplicaGradients:
        assert isinstance(self.gradients, ReplicaGradients)  # noqa: S101
        return self.gradients

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Exit:
        """Train to the last step, or until asked to save and stop. All groups take part in the end."""
        self._begin()
        self._clock = time.monotonic()
        while not self._is_last:
            stepped = self._step_or_regroup()
            if stepped and self._of_step.members_changed:
                self._regroup()
            elif stepped and self.replicas.is_full and not self._is_last:
                self._save_or_regroup()
            self._report()
            self.profiler.follow(wanted=self._is_profiled and not self._is_last)
        self._gather_all()
        if tiers := self._stored_tiers():
            self._save(tiers)
        self._wait()
        if self._stop:
            return Exit.PREEMPTED
        self._finish()
        return Exit.COMPLETED

    @property
    def _is_last(self) -> bool:
        return self._stop or self.state.step >= self._last_step()

    def _begin(self) -> None:
        """Restore the claim's base, or wait to take another group's state."""
        if self.state_is_missing:
            self._warm_up()
            self.state.consumed = SharedConsumed()
            self.worker.say("ready", start=self.replicas.start)
            self._regroup(math.inf)
            self.signs.base("compute")
            return
        self._restore()
        total = self.state.consumed.total(self.ranks)
        self.state.consumed = SharedConsumed(total.position, total.digest)
        self._of_step.before = total.digest
        self.saver.prepare(self._to_save())
        self._saves = True

    def _warm_up(self) -> None:
        """Compute a part of a step's gradients and drop them. The others wait for this group's first step as a member: what only a first
        one takes (compilers, caches, threads) is over then."""
        job = self.job.at(self.state.step)
        self._of_step.warm_up(job)
        self.state.moments()
        clip_gradients(self.parts, job.optimizer.clip_norm, self.device)
        self.state.optimizer.zero_grad()

    def _step_or_regroup(self) -> bool:
        """Take a step. Returns False if it was given up, because a group is lost; the members have changed then."""
        try:
            self._stop |= self._step()
        except ReplicaChangeError:
            self._regroup()
            return False
        return True

    def _save_or_regroup(self) -> None:
        """Begin to save again, or save what is due."""
        try:
            if not self._saves:
                self._save_again()
            elif self._postponed:
                due, self._postponed = self._postponed, set()
                self._save(due)
        except ReplicaChangeError:
            self._regroup()

    def _save(self, tiers: set[str]) -> None:
        self._unsaved |= dict.fromkeys(tiers, self.state.step)
        super()._save(tiers)

    def _apply(self, job: Job, agreed: StepConsensus) -> None:
        super()._apply(job, agreed)
        self._applied = agreed
        self._of_step.summed, self._of_step.before = False, self.state.consumed.digest
        self._postponed |= self._due

    def _gather_all(self) -> None:
        """Wait for the groups that are missing, whose processes start meanwhile: the others cannot save without them."""
        while True:
            if not self.replicas.is_full:
                self._regroup(math.inf)
                continue
            try:
                self._compare()
                if not self._saves:
                    self._save_again()
                return
            except ReplicaChangeError:
                self._regroup()

    def _compare(self) -> None:
        """Raise CorruptionError on all ranks where groups do not hold the same state at the end."""
        own = self.state.own_hash()
        size, heard = self.replicas.size, self.replicas.exchange(own)
        unlike = [rank for rank, each in enumerate(heard) if each != heard[rank % size]]
        if unlike:
            found = f"the state of rank {unlike[0]} differs from that of rank {unlike[0] % size}, which should be the same"
            raise CorruptionError(found)
        print(f"replica {self.replicas.replica}, rank {self.worker.rank}: state {own.hex()}", flush=True)

    # --- other members ------------------------------------------------------------------------------------------------

    def _regroup(self, patience_s: float | None = None) -> None:
        """Continue with other members: agree on the step, and give those that return the state. Training waits for it."""
        patience_s = self.replicas.order_s if patience_s is None else patience_s
        began, was_first = time.monotonic(), self._is_first
        while True:
            if self._saves:
                self._forsake_saves()
            try:
                self.replicas.follow(patience_s)
                if self._is_first and not was_first:
                    self._take_metrics_over()
                was_first = self._is_first
                returned = self._settle()
                break
            except ReplicaChangeError:
                # Another group was lost meanwhile.
                patience_s = self.replicas.order_s
        self._clock = time.monotonic()
        members = self.replicas.members
        # Those that have waited know for how long.
        reports = next(replica for replica in members.replicas if replica not in returned)
        if (self.replicas.replica, self.replicas.inner) == (reports, 0):
            facts = {"epoch": members.epoch, "replicas": members.replicas, "returned": returned}
            self.worker.say("note", kind="regrouped", step=self.state.step, seconds=self._clock - began, **facts)

    def _forsake_saves(self) -> None:
        """Give up the saves in progress, in which the lost group takes part. They are due again, as are those that it has made fail."""
        self._report()
        self.saver.forsake()
        self._saves = False
        self._postponed |= self._unsaved.keys()
        self._unsaved.clear()

    def _take_metrics_over(self) -> None:
        """Write the line of the last step if the first rank before this one has died before it did."""
        cut_torn_line(self.directory.metrics)
        written = max((line["step"] for line in read_last(self.directory.metrics, _TAIL_BYTES)), default=0)
        if self.line is not None and written < self.line.step:
            self._append(self.line)

    def _settle(self) -> list[int]:
        """Bring all ranks to one step. Return the groups that took another one's state. Raises ReplicaChangeError."""
        own = self._own_state()
        heard = list(map(ReplicaState.unpack, self.replicas.exchange(own.pack())))
        furthest = max(heard, key=lambda each: each.level)
        # Odd: some have the next sum of gradients, which no rank has applied.
        step, is_summed = divmod(furthest.level, 2)
        if furthest.level < 0 or not {each.level for each in heard} <= {-1, 2 * step, 2 * step + (1 if is_summed else -1)}:
            raise RuntimeError(f"the replica groups are at levels {sorted({each.level for each in heard})}: no state is common")
        self._stop = any(each.stop for each in heard)
        self._postponed = self._tiers_of(heard)
        if own.level == furthest.level - 1 and not is_summed:
            self._apply_late(furthest)
        elif own.level >= 0:
            self.state.consumed.digest = self._of_step.before
        returned = [self.replicas.members.replicas[at // self.replicas.size] for at, each in enumerate(heard) if each.level < 0]
        if returned:
            self._send_state(sorted(set(returned)), step, furthest)
        return sorted(set(returned))

    def _own_state(self) -> ReplicaState:
        state, applied = self.state, self._applied
        if self.state_is_missing:
            return ReplicaState(-1)
        return ReplicaState(
            2 * state.step + self._of_step.summed,
            applied.loss if applied else 0.0,
            applied.norm if applied else 0.0,
            sum(flag << place for place, flag in enumerate(applied.flags)) if applied else 0,
            state.consumed.position,
            self._of_step.before,
            sum(1 << place for place, tier in enumerate(self.job.config.checkpoint.tiers) if tier.kind in self._postponed),
            self._stop,
        )

    def _tiers_of(self, heard: Sequence[ReplicaState]) -> set[str]:
        tiers = enumerate(self.job.config.checkpoint.tiers)
        return {tier.kind for place, tier in tiers if any(each.due >> place & 1 for each in heard)}

    def _apply_late(self, ahead: ReplicaState) -> None:
        """Apply the step that another group has applied: the sum of its gradients is here too."""
        job = self.job.at(self.state.step)
        flags = tuple(bool(ahead.flags >> place & 1) for place in range(3 + len(self.schedule.late(time.monotonic()))))
        agreed = StepConsensus(ahead.loss, ahead.norm, finite=True, usual=True, flags=flags)
        self.state.consumed.digest = ahead.digest
        self._stop |= self._follow(agreed)
        self._apply(job, agreed)

    def _send_state(self, returned: Sequence[int], step: int, furthest: ReplicaState) -> None:
        """Give the groups that return the state of the first other one."""
        sender = next(replica for replica in self.replicas.members.replicas if replica not in returned)
        with torch.no_grad(), in_section("restore"):
            tensors = (self.state.parameters() | self.state.moments()).values()
            self.replicas.send_state([local_tensor(each).data for each in tensors], sender, returned)
        if self.replicas.replica in returned:
            self.state.step, self.state.consumed.position = step, furthest.position
            self.state.consumed.digest = self._of_step.before = furthest.digest
            self.worker.completed(step)
            self.state_is_missing = False

    def _save_again(self) -> None:
        """Begin to save with all ranks: a step after they have come together, so that training waits for one thing at a time."""
        assert self.replicas.everyone is not None  # noqa: S101  the members are all groups
        self.ranks = self.replicas.everyone

        def begin() -> None:
            self._open_saver()
            self.saver.prepare(self._to_save())

        self._saves = succeeds(begin)
        if not self.replicas.agree(self._saves):
            raise ConnectionResetError("saves cannot begin on all ranks")
