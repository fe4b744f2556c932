"""Defines the cost of one pass on a rank: seconds, by what they are spent on."""

from typing import NamedTuple

from msgspec import Struct

# Bytes of a number in activations, which all mixed-precision recipes keep in bf16 or fp16.
ACTIVATION = 2


class Cost(NamedTuple):
    """Seconds of one pass through something by what they are spent on. Communication counts what computation does not hide.

    `host` is not part of the time: the seconds that the host needs to launch the pass's kernels, which show where kernels are shorter.
    """

    matmul: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    experts: float = 0.0
    launch: float = 0.0
    host: float = 0.0

    @property
    def seconds(self) -> float:
        """The seconds of the pass."""
        return self.matmul + self.attention + self.memory + self.tensor + self.context + self.experts + self.launch

    @property
    def kernels(self) -> float:
        """The seconds of computing, without communication."""
        return self.matmul + self.attention + self.memory + self.launch

    def plus(self, other: "Cost") -> "Cost":
        """Return one pass after the other."""
        return Cost(*map(float.__add__, self, other))

    def times(self, factor: float) -> "Cost":
        """Return the pass, `factor` times."""
        return Cost(*(part * factor for part in self))


NOTHING = Cost()


class PartCost(Struct, frozen=True):
    """A part of a block on one rank, for one microbatch. `again` is what its backward recomputes under the training's recomputation,
    in the blocks that recompute."""

    forward: Cost
    input_gradient: Cost
    weight_gradient: Cost
    again: Cost = NOTHING

    def plus(self, other: "PartCost") -> "PartCost":
        """Return both parts, one after the other."""
        return PartCost(
            self.forward.plus(other.forward),
            self.input_gradient.plus(other.input_gradient),
            self.weight_gradient.plus(other.weight_gradient),
            self.again.plus(other.again),
        )

    def times(self, factor: float) -> "PartCost":
        """So many of it."""
        return PartCost(
            *(getattr(self, name).times(factor) for name in ("forward", "input_gradient", "weight_gradient", "again"))
        )
