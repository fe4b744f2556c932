"""Defines the options of a training script."""

from pydantic import Field

from headway.jobspec.spec.job import Argument
from headway.jobspec.spec.section import Section
from headway.planner.framework import Framework


class ScriptOptions(Section):
    """A training script that torchrun could start as well."""

    argv: tuple[Argument, ...] = Field(min_length=1, examples=[["train.py", "--epochs=3"]])
    """The script and its arguments, each of them text; a relative path starts where the job is submitted, and `{layout.tp}` and
    the like stand for values of the plan (docs/script.md)."""
    module: bool = Field(False, examples=[True])
    """Whether the first item is a module, as after `python -m`, instead of a file."""
    python: bool = Field(True, examples=[False])
    """Whether Python runs the first item; else it is a command, as after torchrun's `--no-python`."""
    framework: Framework | None = Field(None, examples=["megatron"])
    """Framework whose code runs the script's steps, for estimates of memory and time; torchtitan when left out."""
