"""`headway check JOB --run RUN` selects the run and its attempt, and decides with which edits the run can be resumed."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.cli.main import main
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import to_json
from headway.runner import rundir
from tests.faults.runs import headway

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: here
scheduler: {kind: local}
node_groups: [{name: cpu, count: 2, cpus: 4, procs: 1}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: here
nodes: 1
model: {vocab_size: 256, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn_hidden: 64}
data: {kind: python-stdlib, options: {limit: 1MB}}
batch: {global: 4 sequences, micro: 2, sequence: 32}
optimizer: {lr: 0.003}
steps: 20
checkpoint: {tiers: [{kind: shared, every: 5 steps}]}
"""
NAME = "case-0123abcd-1"

Opened = Callable[..., Path]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Open an attempt of the run like a launcher, from the current job document, with `entries` in its journal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_RUNS", raising=False)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    write()

    def open_attempt(attempt: int = 0, *entries: dict[str, object], keep_spec: bool = True) -> Path:
        planned = load_job_plan(Path("job.yaml"))
        assert planned is not None
        Path("spec.json").write_text(json_text(planned.plan.kept_spec))
        monkeypatch.setattr("sys.stdin", io.StringIO(to_json(planned.plan.run)))
        spec = ["--spec", "spec.json"] if keep_spec else []
        assert rundir.main(["open", "runs", NAME, "--attempt", str(attempt), *spec]) == 0
        for number, entry in enumerate(entries, attempt + 1):
            line = json.dumps({"wall": 1.0, "attempt": attempt, **entry}) + "\n"
            with Path("runs", NAME, "shared", "journal", f"{number:06d}.jsonl").open("a") as journal:
                journal.write(line)
        return Path("runs", NAME)

    return open_attempt


def write(*edits: tuple[str, str], more: str = "") -> None:
    text = JOB
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    Path("job.yaml").write_text(text + more)


def committed(step: int) -> dict[str, object]:
    return {"kind": "committed", "step": step, "save_s": 0.1, "bytes": 1}


def claim(step: int = 0, generation: int = 0) -> dict[str, object]:
    """Return a claim from the checkpoint of that step and generation, or from the start of the run."""
    return {"kind": "claim", "base": {"step": step, "generation": generation} if step else None}


def journal(generation: int, *entries: dict[str, object]) -> None:
    lines = [json.dumps({"wall": 1.0, "attempt": 0, **entry}) + "\n" for entry in entries]
    Path("runs", NAME, "shared", "journal", f"{generation:06d}.jsonl").write_text("".join(lines))


def check(capsys: pytest.CaptureFixture[str], *words: str, run: str = NAME) -> tuple[int, str]:
    """Return the exit code and stdout."""
    capsys.readouterr()
    code = main(["check", "job.yaml", "--run", run, *words])
    return code, capsys.readouterr().out


def codes(out: str) -> list[str]:
    return [problem["code"] for problem in json.loads(out)["problems"]]


# --- edits with which the run can be resumed --------------------------------------------------------------------------


def test_unmodified_job_of_a_run_has_no_changes(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened(0, committed(15))
    assert check(capsys) == (0, f"run `{NAME}`, step 15: nothing has changed since its attempt 0\n\n1 document: no problems\n")


def test_allowed_change_is_listed_with_its_reason_and_is_not_a_problem(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(0, committed(15))
    write(("5 steps", "10 steps"), ("nodes: 1", "nodes: 2"))
    code, out = check(capsys)
    assert code == 0
    reason = "checkpoints load on any number of ranks, and samples depend only on their position in the order"
    assert out.splitlines() == [
        f"run `{NAME}`, step 15, what has changed since its attempt 0:",
        f"  nodes: 1 -> 2 at the next attempt ({reason})",
        "  checkpoint.tiers[0].every: 5 steps -> 10 steps at the next attempt (saving does not change what is computed)",
        "",
        "1 document: no problems",
    ]
    assert codes(check(capsys, "--format", "json")[1]) == []


def test_changed_learning_rate_is_rejected_with_the_history_entry_to_add(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(0, committed(15))
    write(("lr: 0.003", "lr: 0.001"))
    code, out = check(capsys)
    assert code == 1
    assert out == (
        f"error[HW420]: `optimizer.lr` is `0.001`, and run `{NAME}` was made with `0.003`: every later update follows from it, and"
        " `history` must record from which step on\n"
        "  --> job.yaml:9:17\n"
        " 9 | optimizer: {lr: 0.001}\n"
        "   |                 ^^^^^\n"
        "\n"
        "hint: put `0.003` back and record the change in `history`: `{from_step: 15, set: {optimizer.lr: 0.001}}`; or start a new run\n"
        "\n"
        "1 document: 1 error\n"
    )


def test_changed_model_requires_a_new_run(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    write(("layers: 1", "layers: 2"))
    code, out = check(capsys, "--format", "json")
    assert (code, codes(out)) == (1, ["HW419"])
    assert json.loads(out)["problems"][0]["path"] == ["model", "layers"]


def test_json_lists_rejected_changes_as_problems(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    write(("lr: 0.003", "lr: 0.001"), ("layers: 1", "layers: 2"), ("5 steps", "10 steps"))
    assert codes(check(capsys, "--format", "json")[1]) == ["HW419", "HW420"]
    _, sarif = check(capsys, "--format", "sarif")
    assert [result["ruleId"] for result in json.loads(sarif)["runs"][0]["results"]] == ["HW419", "HW420"]
    _, github = check(capsys, "--format", "github")
    assert [line.split("title=")[1][:5] for line in github.splitlines()] == ["HW419", "HW420"]


def test_change_listed_in_history_is_accepted(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    journal(1, claim(), committed(10), committed(15))
    write(more="history: [{from_step: 15, rollback_to: 10, skip_samples: 8, set: {optimizer.lr: 0.001}}]\n")
    assert codes(check(capsys, "--format", "json")[1]) == []
    expected = "  history[0]: from step 15 on: back to step 10, 8 samples skipped, optimizer.lr: 0.001\n"
    assert expected in check(capsys)[1]
    write(more="history: [{from_step: 10, set: {optimizer.lr: 0.001}}]\n")
    assert codes(check(capsys, "--format", "json")[1]) == ["HW421"]
    assert "history[0]: from step" not in check(capsys)[1]


def test_rollback_lists_the_entries_that_it_reverts(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    journal(1, claim(), committed(10), committed(15))
    first = "{from_step: 10, set: {optimizer.lr: 0.001}}"
    write(more=f"history: [{first}]\n")
    opened(1)
    write(more=f"history: [{first}, {{from_step: 15, rollback_to: 10}}]\n")
    assert "  history[1]: from step 15 on: back to step 10, which undoes history[0]\n" in check(capsys)[1]


def test_finished_run_is_extended_by_a_history_entry(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    journal(1, claim(), committed(20))
    write(more="history: [{from_step: 20, set: {steps: 40}}]\n")
    assert "  history[0]: from step 20 on: steps: 40\n\n1 document: no problems\n" in check(capsys)[1]


def test_rollback_requires_an_existing_checkpoint_of_the_current_line(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """Step 5 of the first generation was deleted, and its step 15 is after the step from which the second resumed."""
    opened()
    gone: dict[str, object] = {"kind": "retired", "checkpoints": [{"step": 5, "generation": 1}]}
    journal(1, claim(), committed(5), committed(10), committed(15), gone)
    journal(2, claim(10, 1), committed(12), committed(20))
    for step, there in {5: False, 10: True, 12: True, 15: False, 0: True}.items():
        write(more=f"history: [{{from_step: 20, rollback_to: {step}}}]\n")
        found = json.loads(check(capsys, "--format", "json")[1])["problems"]
        assert [problem["hint"] for problem in found] == ([] if there else ["use 10, 12 or 20"])


def test_history_entry_of_a_completed_rollback_must_stay(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    journal(1, claim(), committed(5), committed(10))
    write(more="history: [{from_step: 10, rollback_to: 5}]\n")
    opened(1)
    write()
    assert codes(check(capsys, "--format", "json")[1]) == []
    journal(2, {**claim(5, 1), "attempt": 1})
    assert codes(check(capsys, "--format", "json")[1]) == ["HW421"]


# --- which run, and which attempt of it -------------------------------------------------------------------------------


def test_run_is_given_by_its_directory_or_its_name(
    opened: Opened, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened()
    assert check(capsys, run=str(directory))[0] == 0
    Path("runs").rename("elsewhere")
    assert check(capsys)[0] == 1
    monkeypatch.setenv("HEADWAY_RUNS", "elsewhere")
    assert check(capsys)[0] == 0


def test_job_is_compared_with_the_newest_attempt_that_has_a_spec(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened(0)
    write(("5 steps", "10 steps"))
    opened(1)
    assert "nothing has changed since its attempt 1" in check(capsys)[1]
    write()
    opened(2, keep_spec=False)
    assert "checkpoint.tiers[0].every: 10 steps -> 5 steps" in check(capsys)[1]


@pytest.mark.parametrize(
    ("entries", "step"),
    [
        ([], 0),
        ([{"kind": "claim", "base": None}], 0),
        ([committed(15), {"kind": "claim", "base": {"step": 10, "generation": 1}}], 10),
        ([committed(15), {"kind": "claim", "base": None}], 0),
        ([committed(15), committed(20)], 20),
        ([committed(15), {"kind": "preempted"}], 15),
    ],
)
def test_committed_step_is_that_of_the_newest_generation(
    opened: Opened, capsys: pytest.CaptureFixture[str], entries: list[dict[str, object]], step: int
) -> None:
    opened(0, *entries)
    assert check(capsys)[1].startswith(f"run `{NAME}`, step {step}:")


def test_missing_run_or_spec_is_reported_and_nothing_is_checked(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    directory = opened(0, keep_spec=False)
    for spoil, reason in (
        (lambda: None, f"run `{NAME}` has no recorded spec to compare with: an older headway started it"),
        (lambda: (directory / "attempts/0/spec.json").write_text("{"), "not the spec of an attempt: "),
        (lambda: (directory / "attempts/0/spec.json").write_text("[]"), "unknown apiVersion `None` of a spec"),
        (lambda: (directory / "attempts/0/spec.json").write_text('{"apiVersion": "headway/v9"}'), "apiVersion `headway/v9`"),
        (lambda: shutil.rmtree(directory), f"no run `{NAME}`: neither a directory nor a name under `runs`"),
    ):
        spoil()
        capsys.readouterr()
        assert main(["check", "job.yaml", "--run", NAME]) == 1
        found = capsys.readouterr()
        assert found.out == ""
        assert found.err.startswith("error: ")
        assert reason in found.err


@pytest.mark.parametrize("paths", [["."], ["cluster.yaml"], ["job.yaml", "cluster.yaml"]])
def test_run_is_compared_with_exactly_one_job(opened: Opened, capsys: pytest.CaptureFixture[str], paths: list[str]) -> None:
    opened()
    assert main(["check", *paths, "--run", NAME]) == 2
    assert "`--run` compares one job with its run; pass one TrainingJob" in capsys.readouterr().err


@pytest.mark.parametrize(
    "edit", [("lr: 0.003", "lr: fast"), ("steps: 20", "steps: 20\nenvironment: {HF_TOKEN: hf_abcdefghijklmnop}")]
)
def test_job_with_errors_or_a_secret_is_not_compared(
    opened: Opened, capsys: pytest.CaptureFixture[str], edit: tuple[str, str]
) -> None:
    opened()
    write(edit, ("layers: 1", "layers: 2"))
    code, out = check(capsys)
    assert code == 1
    assert f"not compared with run `{NAME}`: the job has errors\n" in out
    assert "HW419" not in out
    assert " -> " not in out, "no value of a difference"


@pytest.mark.slow
def test_real_run_records_its_spec_and_one_without_is_still_resumed(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Path("real").resolve()
    assert headway("run", "job.yaml", runs=runs).returncode == 0
    (directory,) = runs.iterdir()
    assert check(capsys, run=str(directory)) == (
        0,
        f"run `{directory.name}`, step 20: nothing has changed since its attempt 0\n\n1 document: no problems\n",
    )
    (directory / "attempts" / "0" / "spec.json").unlink()
    assert headway("report", directory, runs=runs).returncode == 0
    assert headway("run", "job.yaml", "--resume", directory.name, runs=runs).returncode == 0
    assert json.loads((directory / "attempts" / "1" / "spec.json").read_text())["name"] == "case"
