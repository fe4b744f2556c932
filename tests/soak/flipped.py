"""Tests the control of a flipped bit: under plain torchrun a script silently continues from it, and ends in another state.

Under `headway torchrun` the checkpoint is refused by name (tests/faults/test_scripts.py).
"""

import shutil
from pathlib import Path

import pytest

from tests.faults.test_scripts import SCRIPTS, flip, newest, parameters, plainly
from tests.runner.checkpoint.test_damage import payload

from . import record

STATES = {
    "torch DCP": "step-*/__0_0.distcp",
    "Hugging Face Trainer": "checkpoint-*/optimizer.pt",
    "Lightning": "last.ckpt",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_plain_torchrun_continues_silently_from_a_flipped_bit(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    right, flipped = tmp_path / "right", tmp_path / "flipped"
    right.mkdir()
    plainly(script, right, script.steps)
    shutil.copytree(right, flipped)
    state = newest(flipped / "saved", STATES[name])
    # In the exponent of a number.
    flip(state, payload(state) + 3)
    ended = [plainly(script, folder, script.steps + script.every) for folder in (right, flipped)]
    assert all(f"finished step {script.steps + script.every} " in output for output in ended)
    assert parameters(ended[0]) != parameters(ended[1])
    record(f"control: {name} script under plain torchrun", {"flipped bits": 1, "ended in another state without a word": 1})
