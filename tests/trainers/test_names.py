"""The files of the frameworks' keys list those of the frameworks of this version, with all keys of the tables."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.templates.trainers import framework
from headway.templates.trainers.framework import known_of, misspelt

from .jobs import MEGATRON, PEERS, job, planned
from .test_published import needs_megatron, needs_peers
from .test_tables import JOBS, TABLES

# Each program prints a framework's keys; test_parsers.py compares those of transformers and lightning.
TORCHTITAN = """
import dataclasses
from torchtitan.config.manager import ConfigManager
keys = []
def walk(config, before):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "model_spec":
            continue
        elif dataclasses.is_dataclass(value):
            walk(value, f"{before}{field.name}.")
        else:
            keys.append(before + field.name)
walk(ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel"]), "")
"""
OF_MEGATRON = f"""
import argparse, sys
sys.path.insert(0, {str(MEGATRON)!r})
from megatron.training.arguments import add_megatron_arguments
options = [option for each in add_megatron_arguments(argparse.ArgumentParser())._actions for option in each.option_strings]
keys = {{option.lstrip("-").replace("-", "_") for option in options}} - {{"h", "help"}}
"""


def listed(python: str, program: str) -> set[str]:
    words = [python, "-c", f"{program}\nprint(*sorted(keys), sep=',')"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.splitlines()[-1].split(","))


@needs_peers
@pytest.mark.slow
@pytest.mark.variant
def test_keys_match_torchtitan() -> None:
    assert framework._names("torchtitan").keys == listed(str(PEERS), TORCHTITAN)


@needs_peers
@needs_megatron
@pytest.mark.slow
@pytest.mark.variant
def test_keys_match_megatron() -> None:
    assert framework._names("megatron").keys == listed(str(PEERS), OF_MEGATRON)


@pytest.mark.parametrize(("kind", "ranks", "fields"), JOBS)
def test_no_key_of_a_table_is_taken_for_a_misspelling(kind: str, ranks: int, fields: dict[str, Any], tmp_path: Path) -> None:
    plan = planned(job(kind, ranks, **fields), ranks, tmp_path)
    written = TABLES[kind].write(known_of(plan))
    assert written
    assert {key: meant for key in written if (meant := misspelt(key, kind))} == {}


@pytest.mark.parametrize(
    ("kind", "key", "meant"),
    [
        ("hf", "loging_steps", "logging_steps"),
        ("deepspeed", "wall_clock_breakdwon", "wall_clock_breakdown"),
        ("deepspeed", "zero_optimization.overlap_com", "zero_optimization.overlap_comm"),
        ("deepspeed", "my_own_section.value", None),
        ("hf", "evaluation_strategy", "eval_strategy"),
        ("hf", "block_size", None),
        ("hf", "model_name_or_path", None),
        ("torchtitan", "metrics.log_frequency", "metrics.log_freq"),
        ("torchtitan", "optimizer.param_groups.0.pattern", None),
        ("megatron", "eval_itres", "eval_iters"),
        ("megatron", "mock_data", None),
        ("lightning", "trainer.loger", "trainer.logger"),
        ("lightning", "model.hidden", None),
    ],
)
def test_key_that_resembles_a_known_one_is_a_misspelling(kind: str, key: str, meant: str | None) -> None:
    assert misspelt(key, kind) == meant
