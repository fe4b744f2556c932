"""`headway checkpoint`: output and exit codes of its verbs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from headway.cli.checkpoint_process import Line
from headway.cli.main import main
from headway.cli.views.checkpoint_text import print_adoption, print_differences, print_imported, print_list, print_verified
from headway.runner.checkpoint.__main__ import main as reader
from headway.runner.checkpoint.interop.huggingface import export_safetensors, llama_config, llama_name
from headway.runner.contract import Model
from headway.runner.train.model import Transformer
from tests.faults.runs import JOB
from tests.faults.runs import headway as light
from tests.runner.checkpoint.test_huggingface import Tensors
from tests.support import LIGHT
from tests.support.checkpoints import Piece, RankState, claim, new_run, save

# --- arguments --------------------------------------------------------------------------------------------------------


def test_missing_torch_is_reported_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 3
    how = "use an image that has it, or run `pip install 'headway[torch]'`"
    assert capsys.readouterr() == ("", f"error: reading checkpoints needs torch 2.6 or newer, which is not installed: {how}\n")


@pytest.mark.parametrize("words", [["ls"], ["verify"], ["diff", "a"], ["export"], ["adopt"]])
def test_missing_run_is_reported_by_name(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path))
    (tmp_path / "a").mkdir()
    more = ["--to", str(tmp_path / "out")] if words == ["export"] else []
    assert main(["checkpoint", *words, "nowhere", *more]) == 2
    assert capsys.readouterr().err.startswith(f"error: no run `nowhere`: neither a directory nor a name under `{tmp_path}`")


def test_import_for_a_job_must_be_below_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "runs"))
    words = ["checkpoint", "import", "hf", str(tmp_path), "--to", str(tmp_path / "new"), "--job", str(JOB)]
    assert main(words) == 2
    assert f"`{tmp_path / 'new'}` is not below `{tmp_path / 'runs'}`, where the runs of this job are" in capsys.readouterr().err


# --- text -------------------------------------------------------------------------------------------------------------


def row(step: int | None, made_at: float | None, states: Iterable[str], tiers: Iterable[str] = ("shared",)) -> Line:
    numbers = {"step": step, "generation": 1, "bytes": 2_500_000, "made_at": made_at}
    return {"what": "checkpoint", **numbers, "states": list(states), "tiers": list(tiers), "directory": "d"}


def test_list_starts_with_the_newest_and_ends_with_uncommitted_ones(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([row(10, 0.0, ()), row(20_000, 1.0, ["newest", "base of generation 2"]), row(30, None, ["not committed"], ())])
    head, _, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["step", "generation", "tiers", "bytes", "committed", "(UTC)", "state"]
    assert lines == [
        ["20,000", "1", "shared", "2.5", "MB", "1970-01-01", "00:00", "newest,", "base", "of", "generation", "2"],
        ["10", "1", "shared", "2.5", "MB", "1970-01-01", "00:00"],
        ["30", "1", "-", "2.5", "MB", "-", "not", "committed"],
    ]


def test_run_without_checkpoints_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([])
    assert capsys.readouterr() == ("no checkpoint yet\n", "")


def test_damaged_chain_is_reported_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([row(10, 0.0, ["newest"]), {"what": "damaged", "reason": "3.json is missing"}])
    expected = "error: the chain is damaged: 3.json is missing; run `headway checkpoint adopt` to see what can be done\n"
    assert capsys.readouterr().err == expected


def test_rejected_files_are_listed_below_their_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    refused = [{"what": "refused", "checkpoint": "a", "name": f"data-{n}.bin", "reason": "tensor `w`: torn"} for n in range(2)]
    print_verified([{"what": "progress", "done": 1, "of": 2}, *refused, {"what": "verified", "checkpoint": "b", "bytes": 1000}])
    expected = (
        "a: refused\n  data-0.bin: tensor `w`: torn\n  data-1.bin: tensor `w`: torn\nb: every byte verified (1 kB of tensors)\n"
    )
    assert capsys.readouterr() == (expected, "")


def difference(**values: Any) -> Line:
    return {"what": "difference", "old": None, "new": None, "max_abs": None, "equal": None, "elements": None, **values}


def test_each_kind_of_difference_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    print_differences(
        [
            difference(kind="added", name="a", new="float32[2]"),
            difference(kind="removed", name="b", old="float32[3]"),
            difference(kind="changed", name="c", old="float32[2]", new="float16[2]"),
            difference(kind="values", name="d", max_abs=0.00125, equal=1000, elements=2000),
            difference(kind="values", name="e", equal=0, elements=1),
            difference(kind="object", name="f", old="1"),
            {"what": "compared", "tensors": 5, "differences": 1},
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "added    a  float32[2]",
        "removed  b  float32[3]",
        "changed  c  float32[2] -> float16[2]",
        "values   d  largest difference 0.00125, 1,000 of 2,000 elements equal",
        "values   e  largest difference not finite, 0 of 1 elements equal",
        "object   f  1 -> -",
        "5 tensors and the objects compared: 1 difference",
    ]
    print_differences([{"what": "compared", "tensors": 1, "differences": 0}])
    assert capsys.readouterr().out == "1 tensor and the objects compared: no difference\n"


def test_adopt_prints_the_plan_and_then_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Line] = [
        {"what": "found", "directory": "step-1", "refused": None},
        {"what": "found", "directory": "step-2", "refused": {"name": "part-0.json", "reason": "torn"}},
        {"what": "plan", "damaged": "the chain is empty", "records": 0, "checkpoints": 1, "refused": 1},
    ]
    print_adoption(found, "my-run")
    expected = ["step-1  verified", "step-2  refused: part-0.json: torn", "the chain is empty; 0 records can be read"]
    would = "`headway checkpoint adopt my-run --yes` moves the chain aside and rebuilds it with 1 checkpoint"
    assert capsys.readouterr().out.splitlines() == [*expected, would]
    print_adoption([*found, {"what": "adopted", "moved_to": "aside", "newest": "step-1"}], "my-run")
    assert capsys.readouterr().out.splitlines() == [*expected, "the chain was moved to aside and rebuilt; newest: step-1"]


def test_import_prints_the_new_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    print_imported([{"what": "imported", "run": "runs/new", "checkpoint": "step-0", "tensors": 1, "bytes": 12}])
    assert capsys.readouterr().out == "runs/new: 1 tensor, 12 B, as step-0\n"


# --- the process ------------------------------------------------------------------------------------------------------


def headway(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headway.cli.main", "checkpoint", *map(str, words)]
    environment = {"PYTHONPATH": LIGHT, **os.environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = new_run(tmp_path / "run-1")
    claim(made)
    for step in (10, 20):
        halves = [Piece(torch.full((2, 3), float(step)), (4, 3), 2 * rank) for rank in range(2)]
        save(made, step, [RankState({"model.w": half}, {"step": step}) for half in halves])
    return made.directory


@pytest.mark.slow
def test_verification_rejects_a_checkpoint_with_a_flipped_bit_by_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = headway("verify", run, "--all")
    expected = "".join(f"step-0000000{step}.g000001: every byte verified (48 B of tensors)\n" for step in (20, 10))
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    path = run / "shared/checkpoints/step-000000020.g000001/data-1-0.bin"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    monkeypatch.setenv("HEADWAY_RUNS", str(run.parent))
    done = headway("verify", run.name)
    reason = "data-1-0.bin: tensor `model.w` at [2, 0]+[2, 3]: the bytes differ from those that were committed"
    assert (done.returncode, done.stdout) == (1, f"step-000000020.g000001: refused\n  {reason}\n")


@pytest.mark.slow
def test_exports_equal_the_checkpoint_and_a_plain_one_can_be_imported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway("export", run, "--step", "10", "--to", tmp_path / "plain", "--format", "dcp").returncode == 0
    same = headway("diff", f"{run}@10", tmp_path / "plain")
    assert (same.returncode, same.stderr) == (0, ""), same
    # The reader's own output, without another process.
    capsys.readouterr()
    assert reader(["diff", str(run), str(tmp_path / "plain")]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["what"], line.get("name")) for line in lines] == [
        ("difference", "model.w"),
        ("difference", "objects.0.step"),
        ("difference", "objects.1.step"),
        ("compared", None),
    ]
    assert headway("export", run, "--to", tmp_path / "out").returncode == 0
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out/model.safetensors")["w"], torch.full((4, 3), 20.0))
    # The plain checkpoint becomes a run that can be listed.
    done = headway("import", "dcp", tmp_path / "plain", "--to", tmp_path / "new", "--step", "20")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'new'}: 1 tensor, 48 B, as step-000000020.g000001\n")
    listed = [json.loads(line) for line in headway("ls", tmp_path / "new", "--json").stdout.splitlines()]
    assert [(line["step"], line["states"]) for line in listed] == [(20, ["newest"])]


@pytest.mark.slow
def test_run_with_a_lost_chain_is_adopted_only_on_request(run: Path) -> None:
    assert "there is nothing to adopt" in headway("adopt", run).stderr
    for record in (run / "shared/chain").iterdir():
        record.unlink()
    done = headway("adopt", run)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:3] == [
        "step-000000010.g000001  verified",
        "step-000000020.g000001  verified",
        "the chain is empty; 0 records can be read",
    ]
    assert list((run / "shared/chain").iterdir()) == []
    assert headway("adopt", run, "--yes").returncode == 0
    assert headway("verify", run, "--all").stdout.count("every byte verified") == 2


@pytest.mark.slow
def test_job_resumes_from_an_imported_hugging_face_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "runs"))
    model = Model(vocab_size=256, layers=1, hidden=32, heads=4, kv_heads=2, ffn_hidden=64, dropout=0.1)
    parameters = {name: parameter.detach() for name, parameter in Transformer(model).named_parameters()}
    config, names = llama_config(model, 32, "float32"), {name: llama_name(name) for name in parameters}
    export_safetensors(Tensors(parameters), tmp_path / "hf", names, config)
    # The job on one rank.
    job, cluster = tmp_path / "job.yaml", JOB.with_name("cluster.yaml").read_text()
    job.write_text(JOB.read_text())
    (tmp_path / "cluster.yaml").write_text(cluster.replace("procs: 2", "procs: 1"))
    done = headway("import", "hf", tmp_path / "hf", "--to", "imported", "--step", "56", "--job", job)
    assert (done.returncode, done.stderr) == (0, f"to resume: headway run {job} --resume imported\n")
    assert light("run", job, "--resume", "imported", runs=tmp_path / "runs").returncode == 0
    lines = (tmp_path / "runs/imported/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [57, 58, 59, 60]
