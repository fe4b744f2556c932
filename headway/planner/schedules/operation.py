"""Defines an operation of a pipeline rank: one pass of one microbatch through one stage."""

from typing import Literal, NamedTuple

# Forward, input gradient, weight gradient, both gradients at once: the letters of torch.distributed.pipelining.
Kind = Literal["F", "I", "W", "B"]


class Operation(NamedTuple):
    """`overlapped` is a forward that runs together with the backward after it: both wait for both inputs, and end together."""

    kind: Kind
    stage: int
    microbatch: int
    overlapped: bool = False

    def __str__(self) -> str:
        return f"{self.kind} of microbatch {self.microbatch} on stage {self.stage}"
