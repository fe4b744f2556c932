"""Parses rendered configurations by a framework's own parser, in the Python of its venv: JSON from stdin, JSON to stdout.

In: `{framework, sources, cases: [{argv, files, ranks, environment}]}`. Out: `{answers, keys}`: for each case the configuration by dotted
keys, or its error; and all keys of a framework that is installed next to headway.
"""

import argparse
import contextlib
import dataclasses
import enum
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock


def torchtitan(argv: list[str], files: dict[str, Any], ranks: int) -> dict[str, Any]:
    from torchtitan.config.manager import ConfigManager

    config = ConfigManager().parse_args(argv[2:])
    kind = type(config.activation_checkpoint).__qualname__
    found: dict[str, Any] = {}
    for section in dataclasses.fields(config):
        value = getattr(config, section.name)
        if section.name == "model_spec":
            found["model.layers"] = len(value.model.layers)
        elif dataclasses.is_dataclass(value) and section.name in SECTIONS:
            found |= leaves(dataclasses.asdict(value), f"{section.name}.")
        elif isinstance(value, str):
            found[section.name] = value
    found["activation_checkpoint"] = {"SelectiveAC.Config": "selective", "FullAC.Config": "full"}.get(kind, "none")
    return found


SECTIONS = ("training", "parallelism", "optimizer", "lr_scheduler", "checkpoint", "comm", "debug", "compile", "dataloader")


def megatron(argv: list[str], files: dict[str, Any], ranks: int) -> dict[str, Any]:
    import torch

    # Without a GPU, the checks are those for an H100.
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: argparse.Namespace(major=9, minor=0)
    from megatron.training.arguments import add_megatron_arguments, parse_args, validate_args

    os.environ |= {"WORLD_SIZE": str(ranks), "RANK": "0"}
    sys.argv = argv
    parsed = parse_args()
    values = dict(vars(parsed))
    validate_args(parsed, {})
    found: dict[str, Any] = {}
    for action in add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))._actions:
        if action.option_strings and action.dest in values:
            value = values[action.dest]
            key = action.option_strings[0].lstrip("-").replace("-", "_")
            found[key] = (not value) if type(action).__name__ == "_StoreFalseAction" else value
    return found | {"data_parallel_size": parsed.data_parallel_size}


def deepspeed(argv: list[str], files: dict[str, Any], ranks: int) -> dict[str, Any]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.config import DeepSpeedConfig

    place = "deepspeed.runtime.config.dist"
    with mock.patch(f"{place}.get_rank", return_value=0), mock.patch(f"{place}.get_world_size", return_value=ranks):
        config = DeepSpeedConfig(files["ds_config.json"])
    reduced = config.communication_data_type
    return {
        "zero_optimization.stage": int(config.zero_config.stage),
        "zero_optimization.overlap_comm": config.zero_config.overlap_comm,
        "train_batch_size": config.train_batch_size,
        "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
        "bf16.enabled": config.bfloat16_config.enabled,
        "fp16.enabled": config.float16_config.enabled,
        "communication_data_type": {"torch.float32": "fp32", "torch.bfloat16": "bf16"}.get(str(reduced)),
        "optimizer.type": config.optimizer_name,
        **leaves(config.optimizer_params or {}, "optimizer.params."),
        "scheduler.type": config.scheduler_name,
        **leaves(config.scheduler_params or {}, "scheduler.params."),
    }


def hf(argv: list[str], files: dict[str, Any], ranks: int) -> dict[str, Any]:
    from transformers import HfArgumentParser, TrainingArguments

    # There is no GPU and no process group.
    content = {**files["training_args.json"], "use_cpu": True}
    content.pop("ddp_backend", None)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        file = Path(folder) / "arguments.json"
        file.write_text(json.dumps(content))
        (parsed,) = HfArgumentParser((TrainingArguments,)).parse_json_file(str(file), allow_extra_keys=True)
    return leaves({field.name: getattr(parsed, field.name) for field in dataclasses.fields(parsed) if field.init})


def lightning(argv: list[str], files: dict[str, Any], ranks: int) -> dict[str, Any]:
    import lightning as pl
    from lightning.pytorch.cli import LightningCLI

    class Module(pl.LightningModule):
        """A module with any configuration."""

    content = dict(files["lightning.yaml"])
    content.pop("data", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lightning.yaml"
        file.write_text(json.dumps(content))
        sys.argv = ["train.py"]
        arguments = ["fit", "--config", str(file), *argv[4:]]
        # It only parses: no objects are created from the configuration.
        with mock.patch.object(LightningCLI, "instantiate_classes"), mock.patch.object(LightningCLI, "_run_subcommand"):
            cli = LightningCLI(Module, args=arguments, save_config_callback=None)
    dumped = json.loads(cli.parser.dump(cli.config, format="json", skip_none=False))["fit"]
    callbacks = dumped["trainer"].pop("callbacks", None) or []
    own = [each["init_args"] for each in callbacks if each["class_path"].endswith(".ModelCheckpoint")]
    return leaves(dumped) | (leaves(own[-1], "ModelCheckpoint.") if own else {})


def hf_keys() -> list[str]:
    import transformers

    return [field.name for field in dataclasses.fields(transformers.TrainingArguments)]


def lightning_keys() -> list[str]:
    import lightning as pl

    return [f"trainer.{name}" for name in inspect.signature(pl.Trainer.__init__).parameters if name != "self"]


KEYS = {"hf": hf_keys, "lightning": lightning_keys}
PARSERS = {"torchtitan": torchtitan, "megatron": megatron, "deepspeed": deepspeed, "hf": hf, "lightning": lightning}
# Their values are plain lists, without further keys.
WHOLE = ("betas", "device_mesh", "data_path", "moe_layer_freq")


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of mappings and lists by dotted keys."""
    name = prefix.rstrip(".").rpartition(".")[2]
    if isinstance(value, dict) and value:
        return {key: leaf for name, each in value.items() for key, leaf in leaves(each, f"{prefix}{name}.").items()}
    if isinstance(value, list | tuple) and value and name not in WHOLE:
        return {key: leaf for index, each in enumerate(value) for key, leaf in leaves(each, f"{prefix}{index}.").items()}
    if isinstance(value, enum.Enum):
        value = value.value
    return {prefix.rstrip("."): value}


def main() -> None:
    given = json.load(sys.stdin)
    sys.path[:0] = given["sources"]
    answers = []
    for case in given["cases"]:
        try:
            # Their parsers print what they have parsed.
            with contextlib.redirect_stdout(sys.stderr), mock.patch.dict(os.environ, case["environment"]):
                answers.append({"config": PARSERS[given["framework"]](case["argv"], case["files"], case["ranks"])})
        except (Exception, SystemExit) as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    with contextlib.redirect_stdout(sys.stderr):
        keys = KEYS.get(given["framework"], list)()
    json.dump({"answers": answers, "keys": keys}, sys.stdout, default=str)


if __name__ == "__main__":
    main()
