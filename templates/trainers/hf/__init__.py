"""Trainer `hf`: a training script with a Hugging Face Trainer.

In: a `JobPlan` and `HuggingFaceOptions`. Out: no file; run.json holds the TrainingArguments, which the script reads as JSON.
Start reading: `table.py`.
"""

from headway.jobspec.plan import JobPlan
from headway.templates.trainers.framework import CONFIG, Command, Framework, Late, started
from headway.templates.trainers.hf.options import HuggingFaceOptions
from headway.templates.trainers.hf.table import SHARDED, TABLE
from headway.templates.trainers.table import Config, nested

_FILE = "training_args.json"


def _command(options: HuggingFaceOptions, plan: JobPlan, config: Config) -> Command:
    return Command(started(options, Late(f"{CONFIG}/{_FILE}")), {_FILE: nested(config)})


HF_FRAMEWORK = Framework(
    TABLE, HuggingFaceOptions, _command, names="hf", excludes={"deepspeed": SHARDED, "num_train_epochs": "max_steps"}
)
HF = HF_FRAMEWORK.kind()
