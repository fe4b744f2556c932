"""Trainer `lightning`: a training script with a LightningCLI.

In: a `JobPlan` and `LightningOptions`. Out: no file; run.json holds the CLI's configuration. JSON is YAML, which the CLI reads.
Start reading: `table.py`.
"""

from headway.jobspec.plan import JobPlan
from headway.templates.trainers.framework import CONFIG, Command, Framework, Late, started
from headway.templates.trainers.lightning.options import LightningOptions
from headway.templates.trainers.lightning.table import CALLBACK, TABLE
from headway.templates.trainers.table import Config, nested

_FILE, _CALLBACKS = "lightning.yaml", "trainer.callbacks"
_CLASS = "lightning.pytorch.callbacks.ModelCheckpoint"


def _command(options: LightningOptions, plan: JobPlan, config: Config) -> Command:
    own = {key.removeprefix(f"{CALLBACK}."): value for key, value in config.items() if key.startswith(f"{CALLBACK}.")}
    found = {key: value for key, value in config.items() if not key.startswith(f"{CALLBACK}.")}
    if own:
        found[_CALLBACKS] = [*found.get(_CALLBACKS, ()), {"class_path": _CLASS, "init_args": own}]
    # Without a checkpoint `last` is a start from the beginning.
    resumed = ["--ckpt_path", "last"] if own else []
    return Command(started(options, "fit", "--config", Late(f"{CONFIG}/{_FILE}"), *resumed), {_FILE: nested(found)})


LIGHTNING_FRAMEWORK = Framework(TABLE, LightningOptions, _command, names="lightning")
LIGHTNING = LIGHTNING_FRAMEWORK.kind()
