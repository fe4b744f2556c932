"""Defines the options of Lightning."""

from headway.templates.trainers.framework import ScriptedOptions


class LightningOptions(ScriptedOptions):
    """A script with a `LightningCLI`, which gets `fit --config FILE --ckpt_path last`."""
