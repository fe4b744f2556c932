"""Trainer `deepspeed`: a training script with DeepSpeed's engine.

In: a `JobPlan` and `DeepSpeedOptions`. Out: no file; run.json holds DeepSpeed's JSON, whose path the script gets.
Start reading: `table.py`.
"""

from headway.jobspec.plan import JobPlan
from headway.templates.trainers.deepspeed.options import DeepSpeedOptions
from headway.templates.trainers.deepspeed.table import TABLE
from headway.templates.trainers.framework import CONFIG, Command, Framework, Late, started, words_of
from headway.templates.trainers.table import Config, nested

_FILE = "ds_config.json"


def _command(options: DeepSpeedOptions, plan: JobPlan, config: Config) -> Command:
    words = ["--deepspeed_config", Late(f"{CONFIG}/{_FILE}"), *words_of(options.argv, plan)]
    return Command(started(options, *words), {_FILE: nested(config)})


DEEPSPEED_FRAMEWORK = Framework(TABLE, DeepSpeedOptions, _command)
DEEPSPEED = DEEPSPEED_FRAMEWORK.kind()
