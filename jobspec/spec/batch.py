"""Defines what one optimizer step reads."""

from typing import Annotated

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.jobspec.spec.written import OrAuto
from headway.jobspec.units import GlobalBatch


class Batch(Section):
    """How much one optimizer step reads."""

    global_batch: GlobalBatch = Field(alias="global", examples=["2048 sequences", "16Mi tokens"])
    """Sequences or tokens per optimizer step, over all ranks."""
    micro_sequences: Annotated[int, OrAuto(1)] = Field(alias="micro", ge=1, examples=[2])
    """Sequences per forward pass of one rank."""
    sequence_length: int = Field(alias="sequence", ge=1, examples=[8192])
    """Tokens in one sequence."""
