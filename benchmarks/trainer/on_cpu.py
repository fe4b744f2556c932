"""Lets torchtitan 0.3.0 train its llama3_debugmodel on CPUs: `install()` before torchtitan is imported.

It asks `torch.cuda` for everything where there is no accelerator. Here it asks a stand-in, the same under each launcher, and its attention
is torchtitan's own for models without masks, since flex attention has no backward pass on CPUs; FSDP2 sums gradients, since gloo does not
multiply while it sums. The rest is torchtitan's: its configuration, data loader, FSDP2, loss, optimizer, clipping, checkpoints and metrics.
"""

import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DATASET = "stdlib"
"""A dataset more: the modules of Python's standard library."""
_STATS = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")


class AfterImport(MetaPathFinder):
    """Calls a module's function with it after its import."""

    def __init__(self, hooks: Mapping[str, Callable[[Any], None]]) -> None:
        self._hooks = dict(hooks)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        hook = self._hooks.pop(fullname, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(fullname)
        assert spec is not None  # noqa: S101
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_hook(module: Any) -> None:
            execute(module)
            hook(module)

        loader.exec_module = execute_and_hook
        return spec


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


def _use_the_cpu(utils: Any) -> None:
    utils.device_type, utils.device_module = "cpu", Cpu()


def _add_dataset(text_datasets: Any) -> None:
    from datasets import Dataset  # type: ignore[import-not-found]
    from torchtitan.hf_datasets import DatasetConfig  # type: ignore[import-not-found]

    def load(_: Any) -> Any:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        return Dataset.from_dict({"text": [path.read_text(errors="replace") for path in files]})

    text_datasets.DATASETS[DATASET] = DatasetConfig(DATASET, load, lambda sample: sample["text"])


def _attend_without_masks(config_registry: Any) -> None:
    from torchtitan.models.common.attention import ScaledDotProductAttention  # type: ignore[import-not-found]

    made = config_registry.llama3_debugmodel

    def llama3_debugmodel() -> Any:
        config = made()
        for layer in config.model_spec.model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        return config

    config_registry.llama3_debugmodel = llama3_debugmodel


def _sum_gradients(fsdp: Any) -> None:
    divide = fsdp.FSDPModule.set_gradient_divide_factor

    def divide_apart(self: Any, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)
        divide(self, factor)

    fsdp.FSDPModule.set_gradient_divide_factor = divide_apart


def _keep_timeouts(utils: Any) -> None:
    # After the first step torchtitan sets them by a function that torch 2.13 does not have.
    utils.set_pg_timeouts = lambda *_, **__: None


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "torchtitan.tools.utils": _use_the_cpu,
    "torchtitan.hf_datasets.text_datasets": _add_dataset,
    "torchtitan.models.llama3.config_registry": _attend_without_masks,
    "torch.distributed.fsdp": _sum_gradients,
    "torchtitan.distributed.utils": _keep_timeouts,
}


def install(more: Mapping[str, Callable[[Any], None]] | None = None) -> None:
    """Change torchtitan's modules and torch's, now or when they are imported."""
    hooks = {**HOOKS, **(more or {})}
    for name in hooks.keys() & sys.modules.keys():
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))


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
