"""Trainer `megatron`: Megatron-LM's pretrain_gpt.py.

In: a `JobPlan` and `MegatronOptions`. Out: no file; run.json holds the arguments.
Start reading: `table.py`, then `check.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.jobspec.plan import JobPlan
from headway.templates.trainers.framework import Command, Framework, Late, started
from headway.templates.trainers.megatron.check import check
from headway.templates.trainers.megatron.options import DATA, MegatronOptions
from headway.templates.trainers.megatron.table import TABLE
from headway.templates.trainers.table import Config


def _more(options: MegatronOptions, plan: JobPlan) -> Mapping[str, Any]:
    data = plan.run.data
    if data is None:
        return {}
    keys = {"paths": "data_path", "split": "split", "tokenizer_type": "tokenizer_type", "tokenizer_model": "tokenizer_model"}
    return {key: data.options[name] for name, key in keys.items() if data.options[name] is not None}


def _command(options: MegatronOptions, plan: JobPlan, config: Config) -> Command:
    return Command(started(options, *(word for key, value in config.items() for word in _words(key, value))))


def _words(key: str, value: Any) -> Iterator[str]:
    """Yield the words of an option: an option alone for true, none for false, a word for each item of a list."""
    option = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        yield from [option] if value else []
        return
    yield option
    for each in value if isinstance(value, list) else [value]:
        yield each if isinstance(each, Late) else str(each)


def normal(key: str) -> str:
    """Return the key as the table writes it."""
    return key.lstrip("-").replace("-", "_")


MEGATRON_FRAMEWORK = Framework(
    TABLE,
    MegatronOptions,
    _command,
    check,
    _more,
    normal,
    DATA,
    ("model", "batch", "steps"),
    "megatron",
    {"train_samples": "train_iters"},
)
MEGATRON = MEGATRON_FRAMEWORK.kind()
