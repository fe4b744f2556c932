"""Defines the options of DeepSpeed."""

from pydantic import Field

from headway.jobspec.spec.job import Argument
from headway.templates.trainers.framework import ScriptedOptions


class DeepSpeedOptions(ScriptedOptions):
    """A script that calls `deepspeed.initialize` with the file that `--deepspeed_config` names."""

    argv: tuple[Argument, ...] = Field((), examples=[["--steps={steps}"]])
    """Further arguments of the script, as in the trainer `script`; they come after `--deepspeed_config FILE`."""
