"""`headway pin JOB`: every `auto` becomes the value that the other verbs use for it, and no other byte of the file changes."""

import io
import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.cli.main import main
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import to_json
from headway.runner import rundir

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 64, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic_speed: 400Gb/s}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 10GB/s, read: 10GB/s}
failures: {node_mtbf: 100d, repair: 1d}
"""
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\n"
ARGV = "[train.py, '{model.layers}', '{layout.pp}', '{layout.tp}', '{layout.dp_shard}', '{batch.global}', '{batch.micro}', "
ARGV += "'{batch.sequence}', '{steps}', '{recompute}', '{checkpoint.shared.steps}']"
MODEL = "model: {vocab_size: 32000, layers: 8, hidden: 2048, heads: 16, kv_heads: 8, ffn_hidden: 5632}\n"
OPEN = f"""\
# layout: auto is said below
nodes: 2
{MODEL}steps:   100000
layout:    auto      # what is fastest
batch: {{ global: 64 sequences,micro: 'auto' , sequence: 4096}}
recompute: none
checkpoint:
    tiers:
    -   kind: shared
        every: "auto"

trainer: {{kind: script, options: {{argv: {ARGV}}}}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write a job with `auto` as its layout, its microbatch and its checkpoint interval."""
    (tmp_path / "lab.yaml").write_text(CLUSTER)
    file = tmp_path / "job.yaml"
    file.write_text(HEAD + OPEN)
    return file


def plan(job: Path, capsys: Capture, *options: str) -> str:
    capsys.readouterr()
    assert main(["plan", str(job), "--json", *options]) == 0
    return capsys.readouterr().out


def test_each_value_is_printed_with_its_reason_in_the_order_of_the_file(job: Path, capsys: Capture) -> None:
    assert main(["pin", str(job)]) == 0
    found = capsys.readouterr()
    layout, micro, every = found.out.splitlines()
    assert layout.startswith("layout: {dp_shard: ")
    assert "tokens/s, " in layout.partition("  # ")[2]
    assert micro.partition("  # ")[::2] == (f"batch.micro: {micro.split()[1]}", "found by the same search")
    assert every.startswith("checkpoint.tiers[0].every: ")
    assert "expected goodput " in every.partition(" steps  # ")[2]
    assert found.err == f"3 values pinned in {job}, for the cluster `lab`\n"


def test_progress_is_printed_on_a_terminal(job: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["pin", str(job)]) == 0
    assert capsys.readouterr().err.startswith("deciding 3 open values ...\n")
    assert main(["pin", str(job)]) == 0
    assert capsys.readouterr().err == f"nothing is `auto` in {job}\n"


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_only_auto_values_change(job: Path, capsys: Capture, line_break: str, mark: bytes) -> None:
    text = (HEAD + OPEN).replace("\n", line_break)
    job.write_bytes(mark + text.encode())
    values = {line.partition(": ")[0]: line.partition(": ")[2].partition("  # ")[0] for line in pinned(job, capsys)}
    expected = text.replace("layout:    auto", f"layout:    {values['layout']}").replace("'auto'", values["batch.micro"])
    expected = expected.replace('"auto"', json.dumps(values["checkpoint.tiers[0].every"]))
    assert job.read_bytes() == mark + expected.encode()


def pinned(job: Path, capsys: Capture) -> list[str]:
    capsys.readouterr()
    assert main(["pin", str(job)]) == 0
    return capsys.readouterr().out.splitlines()


def test_plan_and_rendered_files_are_the_same_before_and_after(job: Path, tmp_path: Path, capsys: Capture) -> None:
    before = plan(job, capsys)
    assert main(["render", str(job)]) == 0
    pinned(job, capsys)
    assert plan(job, capsys) == before
    assert main(["render", "--check", str(job)]) == 0
    assert main(["check", str(tmp_path)]) == 0


def test_second_pin_changes_nothing(job: Path, capsys: Capture) -> None:
    pinned(job, capsys)
    before = job.read_bytes()
    assert main(["pin", str(job)]) == 0
    assert capsys.readouterr() == ("", f"nothing is `auto` in {job}\n")
    assert job.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_process_decides_on_the_same_plan(job: Path, capsys: Capture, seed: str) -> None:
    command = [sys.executable, "-m", "headway.cli.main", "plan", str(job), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONHASHSEED": seed})
    assert done.stdout == plan(job, capsys)


def test_layout_of_a_script_is_limited_to_its_arguments(job: Path, capsys: Capture) -> None:
    job.write_text(job.read_text().replace("64 sequences", "2 sequences"))
    mesh = json.loads(plan(job, capsys))["run"]["mesh"]
    assert mesh["dp_shard"] <= 2
    job.write_text(job.read_text().replace("'{layout.pp}', '{layout.tp}', ", ""))
    assert main(["check", str(job)]) == 1
    assert "2 sequences do not divide over 16 data-parallel ranks" in capsys.readouterr().out


@pytest.mark.slow
def test_layout_of_the_builtin_trainer_has_one_axis(job: Path, capsys: Capture) -> None:
    text = HEAD + OPEN.partition("trainer:")[0].replace("recompute: none", "recompute: auto")
    job.write_text(text + "data: {kind: python-stdlib}\noptimizer: {lr: 0.001}\n")
    spec = json.loads(plan(job, capsys))["spec"]
    assert {name: spec["layout"][name] for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")} == {
        "pp": 1,
        "dp_replicate": 1,
        "dp_shard": 16,
        "cp": 1,
        "tp": 1,
        "ep": 1,
    }
    assert spec["recompute"] == "none"


def test_pinned_values_stay_unchanged_if_the_cluster_changes(job: Path, tmp_path: Path, capsys: Capture) -> None:
    pinned(job, capsys)
    spec = json.loads(plan(job, capsys))["spec"]
    (tmp_path / "lab.yaml").write_text(CLUSTER.replace("400Gb/s", "25Gb/s").replace("100d", "1d"))
    assert json.loads(plan(job, capsys))["spec"] == spec


def test_auto_values_follow_the_cluster(job: Path, tmp_path: Path, capsys: Capture) -> None:
    every = json.loads(plan(job, capsys))["run"]["checkpoint"]["tiers"][0]["every_steps"]
    (tmp_path / "lab.yaml").write_text(CLUSTER.replace("100d", "1d"))
    assert json.loads(plan(job, capsys))["run"]["checkpoint"]["tiers"][0]["every_steps"] < every


def test_job_is_pinned_for_the_given_cluster(job: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "elsewhere" / "other.yaml"
    other.parent.mkdir()
    other.write_text(CLUSTER.replace("name: lab", "name: other").replace("100d", "1d"))
    before = plan(job, capsys, "--cluster", str(other))
    assert main(["pin", str(job), "--cluster", str(other)]) == 0
    assert capsys.readouterr().err == f"3 values pinned in {job}, for the cluster `other`\n"
    assert plan(job, capsys, "--cluster", str(other)) == before


def test_permissions_and_links_are_preserved(job: Path, tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    job.rename(kept)
    kept.chmod(0o444)
    job.symlink_to(kept)
    pinned(job, capsys)
    assert job.readlink() == kept
    assert stat.S_IMODE(kept.stat().st_mode) == 0o444
    assert "auto" not in kept.read_text().replace("layout: auto is said below", "")


def test_json_document_stays_json(job: Path, capsys: Capture) -> None:
    document = {
        "apiVersion": "headway/v1alpha1",
        "kind": "TrainingJob",
        "name": "case",
        "cluster": "lab",
        "model": {"preset": "llama-3.1-8b"},
        "layout": "auto",
        "batch": {"global": "64 sequences", "micro": "auto", "sequence": 4096},
        "trainer": {"kind": "script", "options": {"argv": ["train.py", "{layout.tp}", "{layout.pp}"]}},
    }
    job.write_text(json.dumps(document, indent=2))
    pinned(job, capsys)
    after = json.loads(job.read_text())
    assert {key: value for key, value in after.items() if key not in ("layout", "batch")} == {
        key: value for key, value in document.items() if key not in ("layout", "batch")
    }
    assert after["layout"]["dp_shard"] >= 1
    assert after["batch"]["micro"] >= 1


def test_auto_in_a_base_is_reported_with_the_text_to_add_to_the_job(job: Path, tmp_path: Path, capsys: Capture) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(HEAD.replace("case", "base") + "partial: true\n" + OPEN)
    heir = HEAD + "extends: base.yaml\nbatch: {micro: auto}\n"
    job.write_text(heir)
    before = base.read_bytes()
    assert main(["pin", str(job)]) == 1
    found = capsys.readouterr()
    assert found.out.startswith("batch.micro: ")
    assert job.read_text() == heir.replace("auto", found.out.split()[1])
    assert base.read_bytes() == before
    done, first, second, advice, layout, checkpoint = found.err.splitlines()
    assert done == f"1 value pinned in {job}, for the cluster `lab`"
    assert first == f"error: {base}:10:12 leaves `layout` open"
    assert second == f"error: {base}:16:16 leaves `checkpoint.tiers[0].every` open"
    assert advice == f"other documents that extend it may get other values; set it in {job}:"
    # The proposed text is sufficient.
    job.write_text(job.read_text() + f"{layout.strip()}\n{checkpoint.strip()}\n")
    assert main(["pin", str(job)]) == 0
    assert capsys.readouterr().err == f"nothing is `auto` in {job}\n"


def test_layout_that_would_merge_with_that_of_a_base_is_rejected(job: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "base.yaml").write_text(HEAD.replace("case", "base") + "partial: true\nlayout: {cp: 64}\n")
    before = HEAD + "extends: base.yaml\n" + OPEN
    job.write_text(before)
    assert main(["pin", str(job)]) == 1
    assert f"error: {job} would change in other places too with `layout: " in capsys.readouterr().err
    assert job.read_text() == before


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OPEN.replace(MODEL, ""), "HW212"),
        (OPEN.replace("nodes: 2", "nodes: 65"), "HW403"),
        (OPEN.replace("kind: shared", "kind: peer"), "HW709"),
        (OPEN.replace("steps:   100000", "steps: many"), "HW203"),
        (OPEN.replace("4096", "auto"), "HW203"),
        (OPEN + "partial: true\n", "HW211"),
    ],
)
def test_job_with_a_mistake_is_not_changed(job: Path, capsys: Capture, text: str, code: str) -> None:
    job.write_text(HEAD + text)
    assert main(["pin", str(job)]) == 1
    found = capsys.readouterr()
    assert f"error[{code}]" in found.err
    assert found.out == ""
    assert job.read_text() == HEAD + text


def test_problem_of_a_decided_value_is_shown_at_its_auto(job: Path, capsys: Capture) -> None:
    job.write_text(HEAD + OPEN.replace("trainer: {", "resilience: {spares: auto}\ntrainer: {").replace("nodes: 2", "nodes: 64"))
    assert main(["check", str(job)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"error\[HW403\]: the job needs 64 nodes and \d+ spares, but the group `gpu` of `lab` has 64\n", out)
    assert "| resilience: {spares: auto}\n    |                      ^^^^\n" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job.yaml", "-o", "new.yaml"], "job.yaml is a job, which is changed in place; `-o` is for a cluster"),
        (["lab.yaml", "--cluster", "lab.yaml"], "lab.yaml is not a job; `--cluster` is for a job"),
    ],
)
def test_option_for_another_kind_of_document_is_a_usage_error(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], message: str
) -> None:
    monkeypatch.chdir(job.parent)
    assert main(["pin", *words]) == 2
    assert capsys.readouterr().err == f"headway: {message}\n"


def test_run_is_compared_with_decided_values_before_and_after_pinning(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_RUNS", raising=False)
    planned = load_job_plan(Path("job.yaml"))
    assert planned is not None
    Path("spec.json").write_text(json_text(planned.plan.kept_spec))
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(planned.plan.run)))
    run = f"{planned.plan.run_stem}-1"
    assert rundir.main(["open", "runs", run, "--attempt", "0", "--spec", "spec.json"]) == 0
    for _ in range(2):
        capsys.readouterr()
        assert main(["check", "job.yaml", "--run", run]) == 0
        assert "nothing has changed since its attempt 0" in capsys.readouterr().out
        assert main(["pin", "job.yaml"]) == 0
