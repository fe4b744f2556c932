"""Defines the options of a Hugging Face Trainer."""

from headway.templates.trainers.framework import ScriptedOptions


class HuggingFaceOptions(ScriptedOptions):
    """A script with a Hugging Face Trainer that reads its TrainingArguments, and dataclasses of its own, from one JSON file:
    `HfArgumentParser(...).parse_json_file(sys.argv[1])`."""
