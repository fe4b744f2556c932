"""Trainer `deepspeed`: a training script with DeepSpeed's engine.

In: a `JobPlan` and `DeepSpeedOptions`. Out: no file; run.json holds DeepSpeed's JSON, whose path the script gets.
Start reading: `table.py`.
"""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.templates.trainers.deepspeed.options import DeepSpeedOptions
from headway.templates.trainers.deepspeed.table import TABLE
from headway.templates.trainers.framework import CONFIG, Command, Framework, Late, started, words_of
from headway.templates.trainers.table import Config, Known, nested

_FILE = "ds_config.json"


def _command(options: DeepSpeedOptions, plan: JobPlan, config: Config) -> Command:
    words = ["--deepspeed_config", Late(f"{CONFIG}/{_FILE}"), *words_of(options.argv, plan)]
    return Command(started(options, *words), {_FILE: nested(config)})


def _check(options: DeepSpeedOptions, plan: JobPlan, cluster: ClusterPlan, known: Known) -> Iterator[Problem]:
    """Report a second configuration: argparse takes the last of two."""
    for index, word in enumerate(options.argv):
        if word.partition("=")[0].replace("-", "_") in ("__deepspeed_config", "__deepscale_config"):
            message = "headway passes `--deepspeed_config` with the file that it writes from the job"
            hint = "remove it, and set further keys of the file in `trainer.options.arguments`"
            yield Problem("HW327", JOB, ("trainer", "options", "argv", index), message, hint)


DEEPSPEED_FRAMEWORK = Framework(TABLE, DeepSpeedOptions, _command, _check, names="deepspeed")
DEEPSPEED = DEEPSPEED_FRAMEWORK.kind()
