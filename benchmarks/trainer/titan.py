"""Trains torchtitan's llama3_debugmodel on CPUs: `titan.py FOLDER`, by the interpreter of `.venv-peers/trainers`.

torchtitan 0.3.0 asks `torch.cuda` for everything where there is no accelerator. Here it asks a stand-in, the same under both launchers, and
its attention is torchtitan's own for models without masks, since flex attention has no backward pass on CPUs; FSDP2 sums gradients, since
gloo does not multiply while it sums. The rest is torchtitan's: its configuration, data loader, FSDP2, loss, optimizer, clipping and
metrics. The corpus is Python's standard library.
"""

import os
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils  # type: ignore[import-not-found]

from benchmarks.trainer.turns import Alternation

_STATS = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")


class Cpu:
    """The functions of `torch.cuda` that torchtitan calls."""

    memory = SimpleNamespace()

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def get_device_properties(self, *_: Any) -> Any:
        return SimpleNamespace(total_memory=1 << 30, name="cpu")

    def memory_stats(self, *_: Any) -> dict[str, int]:
        return dict.fromkeys(_STATS, 0)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def main() -> None:
    # torchtitan's modules read the device when they are imported.
    utils.device_type, utils.device_module = "cpu", Cpu()
    from datasets import Dataset  # type: ignore[import-not-found]
    from torchtitan import train  # type: ignore[import-not-found]
    from torchtitan.distributed import utils as distributed  # type: ignore[import-not-found]
    from torchtitan.hf_datasets import DatasetConfig  # type: ignore[import-not-found]
    from torchtitan.hf_datasets.text_datasets import DATASETS  # type: ignore[import-not-found]
    from torchtitan.models.common.attention import ScaledDotProductAttention  # type: ignore[import-not-found]
    from torchtitan.models.llama3 import config_registry  # type: ignore[import-not-found]
    from torchtitan.trainer import Trainer  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    texts = [path.read_text(errors="replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    DATASETS["stdlib"] = DatasetConfig("stdlib", lambda _: Dataset.from_dict({"text": texts}), lambda sample: sample["text"])
    made = config_registry.llama3_debugmodel

    def without_masks() -> Any:
        config = made()
        for layer in config.model_spec.model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        return config

    config_registry.llama3_debugmodel = without_masks
    divide = FSDPModule.set_gradient_divide_factor

    def divide_apart(self: Any, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)
        divide(self, factor)

    FSDPModule.set_gradient_divide_factor = divide_apart  # type: ignore[method-assign]
    step, alternation = Trainer.train_step, Alternation.of(os.environ)

    def in_turn(self: Any, *arguments: Any, **options: Any) -> Any:
        alternation.before_step()
        return step(self, *arguments, **options)

    Trainer.train_step = in_turn
    # After the first step, by a function that torch 2.13 does not have.
    distributed.set_pg_timeouts = lambda *_, **__: None
    values = {
        "hf_assets_path": tokenizer_in(folder / f"tokenizer-{rank}"),
        "dump_folder": folder / f"dump-{rank}",
        "dataloader.dataset": "stdlib",
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


def tokenizer_in(folder: Path) -> Path:
    """Write a tokenizer of single bytes into the folder, and return it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|begin|>", "eos_token": "<|end|>"}')
    return folder


if __name__ == "__main__":
    main()
