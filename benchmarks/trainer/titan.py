"""Trains torchtitan's llama3_debugmodel on CPUs, in turns with another job: `titan.py FOLDER`, by the Python of `.venv-peers/trainers`."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainer import on_cpu
from benchmarks.trainer.turns import Alternation


def _take_turns(trainer: Any) -> None:
    step, alternation = trainer.Trainer.train_step, Alternation.of(os.environ)

    def in_turn(self: Any, *arguments: Any, **options: Any) -> Any:
        alternation.before_step()
        return step(self, *arguments, **options)

    trainer.Trainer.train_step = in_turn


def main() -> None:
    on_cpu.install({"torchtitan.trainer": _take_turns})
    from torchtitan import train  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    values = {
        "hf_assets_path": on_cpu.tokenizer_in(folder / f"tokenizer-{rank}"),
        "dump_folder": folder / f"dump-{rank}",
        "dataloader.dataset": on_cpu.DATASET,
        "training.steps": 1_000_000,
        "training.seq_len": 128,
        "training.local_batch_size": 1,
        "training.mixed_precision_param": "float32",
        "metrics.log_freq": 10,
        "parallelism.data_parallel_shard_degree": 2,
        "parallelism.spmd_backend": "partial_dtensor",
    }
    words = [f"--{name}={value}" for name, value in values.items()]
    sys.argv = ["train", "--module=llama3", "--config=llama3_debugmodel", *words]
    train.main()


if __name__ == "__main__":
    main()
