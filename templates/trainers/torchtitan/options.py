"""Defines the options of torchtitan, and of the data that it reads."""

import types
from collections.abc import Mapping

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.templates.kind import DataKind
from headway.templates.trainers.framework import FrameworkOptions


class TorchtitanOptions(FrameworkOptions):
    """torchtitan 0.3: `python -m torchtitan.train`."""

    module: str | None = Field(None, min_length=1, examples=["llama3"])
    """Module with the configuration, as after `--module`; that of the model's preset when left out."""
    config: str | None = Field(None, min_length=1, examples=["llama3_8b"])
    """Function of the module that returns the configuration, as after `--config`; that of the model's preset when left out."""


class Dataset(Section):
    """A data set that torchtitan's data loader knows, with a tokenizer."""

    name: str = Field(min_length=1, examples=["c4"])
    """Name of the data set (`--dataloader.dataset`)."""
    path: str | None = Field(None, min_length=1, examples=["/data/c4"])
    """Its folder (`--dataloader.dataset_path`); it is downloaded when left out."""
    tokenizer: str | None = Field(None, min_length=1, examples=["/data/assets/Llama-3.1-8B"])
    """Folder of Hugging Face's assets with the tokenizer (`--hf_assets_path`); the configuration's when left out."""


DATA: Mapping[str, DataKind] = types.MappingProxyType({"dataset": DataKind(Dataset)})
