"""Trainer `torchtitan`: `python -m torchtitan.train` with a function of its registry and overrides.

In: a `JobPlan` and `TorchtitanOptions`. Out: no file; run.json holds the command line.
Start reading: `table.py`, then `check.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.jobspec.plan import JobPlan
from headway.templates.trainers.framework import Command, Framework, Late
from headway.templates.trainers.table import Config
from headway.templates.trainers.torchtitan.check import check, registered
from headway.templates.trainers.torchtitan.options import DATA, TorchtitanOptions
from headway.templates.trainers.torchtitan.table import TABLE

_RECOMPUTE = "activation_checkpoint"


def _more(options: TorchtitanOptions, plan: JobPlan) -> Mapping[str, Any]:
    data = plan.run.data
    if data is None:
        return {}
    keys = {"name": "dataloader.dataset", "path": "dataloader.dataset_path", "tokenizer": "hf_assets_path"}
    return {key: data.options[name] for name, key in keys.items() if data.options[name] is not None}


def _command(options: TorchtitanOptions, plan: JobPlan, config: Config) -> Command:
    module, function = registered(options, plan)
    words = [word for key, value in config.items() if key != _RECOMPUTE for word in _words(key, value)]
    # A subcommand of tyro's, behind all that belongs to the whole.
    last = [f"activation-checkpoint:{config[_RECOMPUTE]}"] if _RECOMPUTE in config else []
    return Command(["-m", "torchtitan.train", "--module", module, "--config", function, *words, *last])


def _words(key: str, value: Any) -> Iterator[str]:
    """Yield the words of an override as tyro reads them."""
    section, _, name = key.rpartition(".")
    if isinstance(value, bool):
        yield f"--{key}" if value else "--" + ".".join(filter(None, [section, f"no-{name}"]))
    elif isinstance(value, list):
        yield f"--{key}"
        yield from map(str, value)
    else:
        text = f"--{key}={value}"
        yield Late(text) if isinstance(value, Late) else text


def normal(key: str) -> str:
    """Return the key as the table writes it: torchtitan takes `-` and `_` alike."""
    return key.lstrip("-").replace("-", "_")


TORCHTITAN_FRAMEWORK = Framework(TABLE, TorchtitanOptions, _command, check, _more, normal, DATA, names="torchtitan")
TORCHTITAN = TORCHTITAN_FRAMEWORK.kind()
