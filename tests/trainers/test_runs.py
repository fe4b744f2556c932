"""A Hugging Face Trainer and a LightningCLI of the examples train on CPUs, are killed, and resume from their own checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import LIGHT

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "file", "last"),
    [("hf", "training_args.json", 100), pytest.param("lightning", "lightning.yaml", 200, marks=pytest.mark.variant)],
)
def test_rendered_trainer_resumes_after_a_kill(story: str, file: str, last: int, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("headway")), "run", f"examples/trainers/{story}.yaml", "--kill", "1@50"]
    environment = {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, **os.environ, "HEADWAY_RUNS": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (run,) = (path for path in tmp_path.iterdir() if (path / "handle.json").exists())
    config = json.loads((run / "attempts/0/config" / file).read_text())
    assert str(run / "checkpoints") in json.dumps(config)
    assert f"finished step {last} parameters" in (run / "attempts/0/logs/0/0.log").read_text()
    # The first generation was killed; the next has loaded its checkpoint, and each file is recorded.
    assert len(list((run / "shared/journal").glob("*.jsonl"))) == 2
    assert any((run / "shared/saved").iterdir())
