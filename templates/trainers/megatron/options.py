"""Defines the options of Megatron-LM, and of the data that it reads."""

import types
from collections.abc import Mapping

from pydantic import Field

from headway.jobspec.spec.job import Argument
from headway.jobspec.spec.section import Section
from headway.templates.kind import DataKind
from headway.templates.trainers.framework import ScriptedOptions


class MegatronOptions(ScriptedOptions):
    """Megatron-LM: its `pretrain_gpt.py`, or a script with the same arguments."""

    script: Argument = Field("pretrain_gpt.py", examples=["Megatron-LM/pretrain_gpt.py"])
    """The script; a relative path starts where the job is submitted."""


class Indexed(Section):
    """Data that Megatron's `tools/preprocess_data.py` has written."""

    paths: tuple[str, ...] = Field(min_length=1, examples=[["/data/pile_text_document"]])
    """Prefixes of the files (`--data-path`); a number before a prefix is its weight."""
    split: str | None = Field(None, min_length=1, examples=["99,1,0"])
    """Shares of training, validation and test (`--split`)."""
    tokenizer_type: str | None = Field(None, min_length=1, examples=["HuggingFaceTokenizer"])
    """Kind of tokenizer (`--tokenizer-type`)."""
    tokenizer_model: str | None = Field(None, min_length=1, examples=["/data/assets/Llama-3.1-8B"])
    """The tokenizer's file or folder (`--tokenizer-model`)."""


DATA: Mapping[str, DataKind] = types.MappingProxyType({"indexed": DataKind(Indexed)})
