"""Computes the gradients of a step and checks them: finite, not unusual, and equal wherever they are computed."""

import math
import struct
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from headway.runner.boot.heartbeat import in_section
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.rng import drawn_from, restore_rng, rng_state
from headway.runner.contract import Every
from headway.runner.corruption import CorruptionError, say_corrupted
from headway.runner.train.corruption_state import CorruptionState
from headway.runner.train.data import SampleSource, Window
from headway.runner.train.job import Job
from headway.runner.train.optimizer import clip_gradients
from headway.runner.train.parallel import Parts, RankMesh, sync_gradients
from headway.runner.train.replay_vote import Judgement, ReplayVote, shifts
from headway.runner.train.state import TrainState
from headway.runner.train.trace import Trace
from headway.runner.worker import Worker

if TYPE_CHECKING:
    from headway.runner.train.pipeline import Pipeline

# Ranks in a text.
_NAMED = 8


class NonFiniteError(Exception):
    """The loss or its gradient is not a number, however often the same batch is computed."""


@dataclass(frozen=True)
class StepConsensus:
    """The agreed state of a step before it is applied: the mean loss, the gradient's norm, whether both are finite
    and usual everywhere, and which of the flags some rank has set."""

    loss: float
    norm: float
    finite: bool
    usual: bool
    flags: tuple[bool, ...]


@dataclass(frozen=True)
class _StepInputs:
    """The initial state of every attempt at a step: the hash of the samples so far and, if the model draws numbers, the
    generators."""

    digest: int
    generators: dict[str, Any] | None


@dataclass(frozen=True)
class _StepAttempt:
    """A forward and a backward pass over the batch, and the state that it left.

    `found`: what is not finite or not usual. `result`: the hash of this rank's share, empty if it was not traced.
    """

    agreed: StepConsensus
    found: str
    result: bytes
    gradients: list[torch.Tensor | None]
    after: _StepInputs

    @property
    def values(self) -> tuple[float, float]:
        return self.agreed.loss, self.agreed.norm


@dataclass
class Gradients:
    """Computes one rank's gradients; its methods are collective."""

    worker: Worker
    state: TrainState
    corpus: SampleSource
    ranks: Ranks
    mesh: RankMesh
    # With `pp` above 1.
    pipeline: "Pipeline | None" = None
    # By the first rank's clock the next step is due for the check on other ranks.
    _is_late: bool = False

    def of(self, job: Job, flags: Sequence[bool]) -> StepConsensus:
        """Compute the clipped gradients of the batch.

        A non-finite result is computed again, once; if finite then, it was a transient fault, and the step counts. With
        `corruption` in the spec, a step that is due, not finite or unusual is computed on other ranks too, and only a
        result that two of them agree on is used. Raises NonFiniteError and CorruptionError on all ranks.
        """
        begun, soundness = self._begin(job), self.state.soundness
        is_due = self._is_due(job)
        found = self._attempt(job, begun, flags=flags, traced=is_due)
        told = found.agreed.flags
        is_doubted = is_due or not (found.agreed.finite and found.agreed.usual)
        # Its gradients are computed again: their memory is needed for that.
        if is_doubted and not is_due:
            found = replace(found, gradients=[])
        if is_doubted:
            found = self._once_more(job, begun, found) if soundness is None else self._looked_into(job, begun, found, soundness)
        if soundness is not None:
            soundness.norms.append(found.agreed.norm)
        return replace(found.agreed, flags=told)

    def _once_more(self, job: Job, begun: _StepInputs, first: _StepAttempt) -> _StepAttempt:
        again = self._attempt(job, begun)
        if not again.agreed.finite:
            raise NonFiniteError(
                f"{again.found} in {self._step}, as on the first attempt ({first.found}); the step was not applied"
            )
        self._note("transient", found=first.found)
        return again

    # --- the same on other ranks --------------------------------------------------------------------------------------

    def _looked_into(self, job: Job, begun: _StepInputs, first: _StepAttempt, soundness: CorruptionState) -> _StepAttempt:
        """Return the valid attempt, after other ranks have computed the same."""
        own = first if first.result else self._attempt(job, begun, traced=True)
        checked = own.values
        judgement = self._judged(job, begun, own)
        if judgement.suspects:
            self._refuse(job, judgement, soundness)
        if judgement.passing:
            self._note("transient", found=f"{_named(judgement.passing)} computed what no other rank did", ranks=judgement.passing)
            own = self._right_one(job, begun, own, judgement, soundness)
        self._take(own)
        if not own.agreed.finite:
            raise NonFiniteError(f"{own.found} in {self._step}, computed {len(shifts(self.ranks.world_size))} times")
        soundness.held(self.state.step + 1)
        self._is_late = False
        if checked != first.values:
            self._note("transient", found=first.found or "loss {:.9g}, gradient norm {:.9g}".format(*first.values))
        elif first.found and own.values == first.values:
            self._note("spike", found=first.found)
        return own

    def _judged(self, job: Job, begun: _StepInputs, own: _StepAttempt) -> Judgement:
        witnesses = ReplayVote(self.ranks.world_size)
        first, *others = shifts(self.ranks.world_size)
        witnesses.heard(first, self.ranks.gather(own.result))
        for shift in others:
            witnesses.heard(shift, self.ranks.gather(self._attempt(job, begun, shift=shift, traced=True).result))
            if witnesses.settled():
                break
        return witnesses.judge()

    def _right_one(
        self, job: Job, begun: _StepInputs, own: _StepAttempt, judgement: Judgement, soundness: CorruptionState
    ) -> _StepAttempt:
        """Return `own`, or another attempt with the valid results: the sum over ranks consists of them."""
        times = Counter(judgement.passing)
        wrong = self._wrong(own, judgement)
        while wrong:
            own = self._attempt(job, begun, traced=True)
            wrong = self._wrong(own, judgement)
            times.update(wrong)
            if lasting := tuple(rank for rank in wrong if times[rank] > 1):
                self._refuse(job, replace(judgement, lasting=lasting), soundness)
        return own

    def _wrong(self, attempt: _StepAttempt, judgement: Judgement) -> tuple[int, ...]:
        """Return the ranks with invalid results."""
        results = enumerate(self.ranks.gather(attempt.result))
        return tuple(rank for rank, result in results if result != judgement.standing[rank])

    def _refuse(self, job: Job, judgement: Judgement, soundness: CorruptionState) -> NoReturn:
        # Unless steps are recomputed at intervals, it is unknown how far back the fault goes.
        is_known = _replay(job) is not None
        sound_step = soundness.step if is_known else self.state.step
        who, several = _named(judgement.suspects), len(judgement.suspects) > 1
        if judgement.lasting:
            found = f"{who} {'compute' if several else 'computes'} what no other rank does, again and again"
        else:
            found = f"{who} compute different values from the same input; the wrong one cannot be identified"
        known = f"steps up to {sound_step} are verified" if is_known else "earlier steps were not recomputed"
        found = f"{found}: {self._step} was not applied; {known}"
        say_corrupted(self.worker, judgement.suspects, found, sound_step)
        raise CorruptionError(found)

    def _note(self, kind: str, **facts: Any) -> None:
        if self.worker.rank == 0:
            self.worker.say("note", kind=kind, step=self.state.step + 1, sample=self.worker.sample, **facts)

    @property
    def _parts(self) -> Parts:
        assert isinstance(self.state.model, Parts)  # noqa: S101
        return self.state.model

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        """This rank's parameters, in order."""
        return list(self.state.model.parameters())

    @property
    def _step(self) -> str:
        return f"step {self.state.step + 1}"

    # --- when ---------------------------------------------------------------------------------------------------------

    def _is_due(self, job: Job) -> bool:
        """Return whether the coming step is to be computed on other ranks too."""
        every = _replay(job)
        if every is None:
            return False
        if every.steps is not None:
            return (self.state.step + 1) % every.steps == 0
        is_late, self._is_late = self._is_late, False
        return is_late

    def _comes_late(self, job: Job) -> bool:
        every = _replay(job)
        if every is None or every.seconds is None or self.state.soundness is None or self.worker.rank != 0:
            return False
        return time.time() - self.state.soundness.wall >= every.seconds

    # --- an attempt ---------------------------------------------------------------------------------------------------

    def _begin(self, job: Job) -> _StepInputs:
        return _StepInputs(self.state.consumed.digest, rng_state(self.state.device) if job.model.dropout else None)

    def _take(self, attempt: _StepAttempt) -> None:
        """Restore the state that the attempt left."""
        for parameter, gradient in zip(self._parameters, attempt.gradients, strict=True):
            parameter.grad = gradient
        self.state.consumed.digest = attempt.after.digest
        if attempt.after.generators is not None:
            restore_rng(attempt.after.generators, self.state.device)

    def _attempt(
        self, job: Job, begun: _StepInputs, *, flags: Sequence[bool] = (), shift: int = 0, traced: bool = False
    ) -> _StepAttempt:
        """Run forward and backward over the batch; this rank takes the share of the one `shift` after it."""
        state = self.state
        state.consumed.digest = begun.digest
        for parameter in self._parameters:
            parameter.grad = None
        self._draw_as(begun, shift)
        trace = Trace() if traced else None
        with trace.of(self._parts) if trace else nullcontext():
            loss, norm = self._computed(job, shift, trace)
        agreed = self._agree(job, loss, norm, flags)
        found = self._unusual(norm) if agreed.finite and not agreed.usual else ""
        return _StepAttempt(
            agreed,
            found if agreed.finite else self._not_finite(loss, norm),
            trace.result if trace else b"",
            [parameter.grad for parameter in self._parameters],
            self._begin(job),
        )

    def _draw_as(self, begun: _StepInputs, shift: int) -> None:
        """Set the generators to those of the rank whose share it is."""
        if begun.generators is None:
            return
        name = drawn_from(self.state.device)
        theirs = {}
        if shift:
            states = self.ranks.gather(begun.generators[name])
            theirs = {name: states[(self.ranks.rank + shift) % self.ranks.world_size]}
        restore_rng({**begun.generators, **theirs}, self.state.device)

    def _computed(self, job: Job, shift: int, trace: Trace | None) -> tuple[float, float]:
        """Return this rank's loss and the norm of the gradient of all, which is clipped."""
        batch, share = job.batch, (self.mesh.share + shift) % self.mesh.shares
        rounds = batch.global_sequences // (batch.micro_sequences * self.mesh.shares)
        if not self._parts.training:
            self._parts.train()
        if self.pipeline is not None:
            with in_section("data"):
                batches = [self._micro_batch(job, index, share) for index in range(rounds)]
            tokens = torch.cat([each.tokens for each in batches])
            starts = [each.starts for each in batches if each.starts is not None]
            loss = self.pipeline.backward(*self._held(tokens), rounds, torch.cat(starts) if starts else None)
        else:
            loss = torch.zeros((), device=self.state.device)
            for index in range(rounds):
                sync_gradients(self._parts, job.execution, is_last=index == rounds - 1)
                with in_section("data"):
                    micro = self._micro_batch(job, index, share)
                part = self._loss(micro) / rounds
                torch.autograd.backward(part)
                loss += part.detach()
                if trace:
                    trace.add("loss", part)
        return float(loss), float(clip_gradients(self._parts, job.optimizer.clip_norm, self.state.device))

    def _micro_batch(self, job: Job, index: int, share: int) -> Window:
        """Return round `index` of a share of the batch: (micro, sequence + 1) tokens, (micro, sequence) starts of documents."""
        state, batch = self.state, job.batch
        first = state.consumed.position + (index * self.mesh.shares + share) * batch.micro_sequences
        samples = []
        for place in range(first, first + batch.micro_sequences):
            samples.append(self.corpus.at(place, batch.sequence_length, job.config.seed))
            # Ranks that work on one share together count it once.
            if self.mesh.is_first_of_share:
                state.consumed.take(place, samples[-1].tokens)
        tokens = torch.stack([each.tokens for each in samples]).to(state.device)
        starts = [each.starts for each in samples if each.starts is not None]
        return Window(tokens, torch.stack(starts).to(state.device) if starts else None)

    def _held(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets at the positions that this rank holds of each sequence."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.mesh.context is None:
            return inputs, targets
        held = next(iter(self._parts)).positions
        return inputs[:, held], targets[:, held]

    def _loss(self, micro: Window) -> torch.Tensor:
        (model,) = self._parts
        loss: torch.Tensor = model(*self._held(micro.tokens), micro.starts)
        return loss

    def _agree(self, job: Job, loss: float, norm: float, flags: Sequence[bool]) -> StepConsensus:
        """Agree on what all ranks do at the same step. Only the first attempt includes flags."""
        bad = not (math.isfinite(loss) and math.isfinite(norm))
        checks, soundness = job.config.corruption, self.state.soundness
        unusual = checks is not None and soundness is not None and soundness.is_unusual(norm, checks)
        told = torch.tensor([loss, bad, unusual, self._comes_late(job), *flags], dtype=torch.float64)
        dist.all_reduce(told)
        total, is_bad, is_unusual, is_late, *raised = told.tolist()
        self._is_late = is_late > 0
        # Of a pipeline only the last stage has a loss.
        loss = total * self.mesh.degrees.pp / self.worker.world_size
        return StepConsensus(loss, norm, not is_bad > 0, not is_unusual > 0, tuple(flag > 0 for flag in raised))

    def _not_finite(self, loss: float, norm: float) -> str:
        """Return the ranks of non-finite losses, or that all losses are finite and only the gradient is not. Collective."""
        losses = [struct.unpack("<d", said)[0] for said in self.ranks.gather(struct.pack("<d", loss))]
        ranks = [f"{value} on rank {rank}" for rank, value in enumerate(losses) if not math.isfinite(value)]
        return f"loss {', '.join(ranks)}" if ranks else f"gradient norm {norm}, every loss finite"

    def _unusual(self, norm: float) -> str:
        usual = self.state.soundness.usual() if self.state.soundness else None
        return f"gradient norm {norm:.4g}" + (f", {norm / usual:.1f} times the usual {usual:.4g}" if usual else "")


def _replay(job: Job) -> Every | None:
    """Return how often a step is to be computed on other ranks too."""
    return job.config.corruption.replay if job.config.corruption else None


def _named(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 1 and 2`."""
    if len(ranks) > _NAMED:
        return f"ranks {', '.join(map(str, ranks[:_NAMED]))} and {len(ranks) - _NAMED:,} more"
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
