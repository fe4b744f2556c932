"""Tests checkpoints saved through torch under `headway torchrun`: no file is added, other programs' files are kept, damage is found."""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.support.worlds import run_world

from .runs import headway, only_run

pytestmark = pytest.mark.slow

# Its file of step 4 is damaged as a disk does it, once it has its checksum; then it is killed.
LISTED = """
import glob, json, os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from pathlib import Path
dist.init_process_group("gloo")
Path("ckpt").mkdir(exist_ok=True)
newest = max(Path("ckpt").glob("*"), key=lambda path: path.stat().st_mtime_ns, default=None)
start = torch.load(newest)["step"] + 1 if newest else 0
print("begins at", start, flush=True)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(start, 8):
    model(torch.ones(64)).sum().backward()
    optimizer.step()
    path = f"ckpt/{step}.pt"
    torch.save({"step": step, "model": model.state_dict()}, path)
    for old in sorted(os.scandir("ckpt"), key=lambda entry: entry.stat().st_mtime_ns)[:-3]:
        os.unlink(old.path)
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"dcp/step-{step}")
    Path(f"dcp/step-{step}/checkpoint.json").write_text(json.dumps({"step": step}))
    if step == 4 and start == 0:
        while not any(f"{path}\\",\\"kind\\":\\"file" in open(name).read() for name in glob.glob(sys.argv[1])):
            optimizer.step()
        stat = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(stat.st_size // 2)
            byte = file.read(1)[0]
            file.seek(stat.st_size // 2)
            file.write(bytes([byte ^ 1]))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.kill(os.getpid(), 9)
state = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
dcp.load(state, checkpoint_id="dcp/step-3")
print("loaded", json.loads(Path("dcp/step-3/checkpoint.json").read_text()))
dist.destroy_process_group()
"""


def test_no_file_is_added_and_a_changed_one_is_rejected_before_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LISTED)
    done = headway("torchrun", "train.py", str(tmp_path / "runs/*/shared/saved/*.jsonl"), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["begins at 0", "begins at 4", "loaded {'step': 3}"]
    run = only_run(tmp_path / "runs")
    assert len(run.journal("start")) == 2, "no rank has read the changed file"
    (note,) = run.journal("refused file")
    assert note["path"] == str(tmp_path / "ckpt/4.pt")
    assert Path(note["now"]).is_relative_to(run.directory / "shared/refused")
    left = sorted(str(path.relative_to(tmp_path)) for name in ("ckpt", "dcp") for path in (tmp_path / name).rglob("*"))
    folders = [f"dcp/step-{step}" for step in range(8)]
    inside = [f"{folder}/{name}" for folder in folders for name in (".metadata", "__0_0.distcp", "checkpoint.json")]
    assert left == ["ckpt/5.pt", "ckpt/6.pt", "ckpt/7.pt", *sorted([*folders, *inside])]
    dcp_to_torch_save("dcp/step-7", "out.pt")
    assert torch.load("out.pt")["model"].keys() == {"weight", "bias"}


# Most bytes of two saves are equal, because only a small part is trained.
COPIED = """
import mmap, os, shutil, torch
backbone = torch.zeros(512, 512)
head = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
first = torch.load("last.pt")["step"] + 1 if os.path.exists("last.pt") else 1
print("begins at", first)
if first == 1:
    torch.save(torch.zeros(1 << 16), "bank.pt")
bank = torch.load("bank.pt", mmap=True)
print("bank", bank[0].item())
for step in range(first, first + 3):
    head(torch.ones(8)).sum().backward()
    optimizer.step()
    torch.save({"step": step, "backbone": backbone, "head": head.state_dict()}, "last.pt")
    if step == first:
        shutil.copy2("last.pt", "best.pt")
torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
torch.load("bank.pt", mmap=True)[:8] += 1
shutil.copy("best.pt", "last.pt")
print("back at", torch.load("last.pt")["step"])
"""


def test_files_rewritten_by_another_program_are_loaded_and_kept(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The same script, which trains one turn without headway.
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "train_elsewhere.py").write_text(COPIED)
    monkeypatch.syspath_prepend(elsewhere)
    (tmp_path / "train.py").write_text(COPIED)
    words, said = ("torchrun", "--rdzv-id", "one", "train.py"), []
    for again in (False, True):
        if again:
            run_world("train_elsewhere", 1)
        done = headway(*words, runs=tmp_path / "runs")
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split("\n")[:-1])
    assert said == [[f"begins at {at}", f"bank {at - 1:.1f}", f"back at {at}"] for at in (1, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank.pt", "best.pt", "last.pt", "runs", "train.py"]
    journals = [path.read_text() for path in (tmp_path / "runs").glob("*/shared/journal/*.jsonl")]
    assert journals
    assert not any("refused file" in text for text in journals)
