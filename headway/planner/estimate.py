"""Estimates a training step: whether it fits, how long it takes, and what it costs."""

from functools import cached_property

from msgspec import Struct

from headway.planner.from_plan import EstimateError
from headway.planner.memory.hints import hints
from headway.planner.memory.ledger import MemoryUse, checkpoint_bytes, peak
from headway.planner.schedules.orders import ScheduleError
from headway.planner.speed.step import EstimatedStep, step_time
from headway.planner.training import Training

_COSTS_SHOWN = 3


class TrainingCost(Struct, frozen=True):
    """The cost of training on `tokens` tokens without failures: `steps` optimizer steps, `days`, GPU-hours."""

    tokens: int
    steps: int
    days: float
    gpu_hours: float


class Estimate(Struct, frozen=True, dict=True):
    """A step's memory and time."""

    training: Training
    memory: MemoryUse
    step: EstimatedStep

    @property
    def tokens_s(self) -> float:
        """Tokens a second of all GPUs."""
        return self.training.tokens / self.step.seconds

    @property
    def tokens_s_gpu(self) -> float:
        """Tokens a second of one GPU."""
        return self.tokens_s / self.training.gpus

    @property
    def tflops_causal(self) -> float:
        """10^12 model operations a second of one GPU, where attention counts the half that a causal mask leaves."""
        return self._tflops(self.step.flops_causal)

    @property
    def tflops_full(self) -> float:
        """10^12 model operations a second of one GPU, where attention counts the full square."""
        return self._tflops(self.step.flops_full)

    @property
    def mfu_causal(self) -> float:
        """Model FLOPs utilization, causal attention, of the peak in bf16 (arXiv 2204.02311, appendix B, counts the full square)."""
        return self.tflops_causal / self.training.gpu.bf16_tflops

    @property
    def mfu_full(self) -> float:
        """Model FLOPs utilization as arXiv 2204.02311, appendix B, has it: the full square of attention, of the peak in bf16."""
        return self.tflops_full / self.training.gpu.bf16_tflops

    @property
    def is_possible(self) -> bool:
        """Whether the GPUs' peak, in the format that is computed in, allows the step: a measured one may be of something else."""
        _, peak_tflops = self.training.gpu.rate_of(self.training.formats.compute)
        return self.tflops_causal <= peak_tflops

    @cached_property
    def costs(self) -> tuple[tuple[str, float], ...]:
        """The largest costs: names, and shares of the step."""
        shares = ((name, seconds / self.step.seconds) for name, seconds in self.step.parts.items())
        return tuple(sorted(shares, key=lambda item: -item[1])[:_COSTS_SHOWN])

    @cached_property
    def hints(self) -> tuple[str, ...]:
        """Changes for a step that is not certain to fit, as text."""
        return hints(self.training, self.memory)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint of the whole run."""
        return checkpoint_bytes(self.training)

    def budget(self, tokens: int) -> TrainingCost:
        """Return what training on so many tokens takes."""
        steps = -(-tokens // self.training.tokens)
        seconds = steps * self.step.seconds
        return TrainingCost(tokens, steps, seconds / 86400, seconds / 3600 * self.training.gpus)

    def _tflops(self, flops: float) -> float:
        return flops / self.step.seconds / self.training.gpus / 1e12


def estimate(training: Training) -> Estimate:
    """Return the training's memory and time. Raises EstimateError where the pipeline's schedule does not take the layout."""
    try:
        return Estimate(training, peak(training), step_time(training))
    except ScheduleError as error:
        hint = "change `batch`, or `pp`, `virtual_stages` or `schedule` of the `layout`"
        raise EstimateError(f"no step can be estimated: {error}", hint) from error
