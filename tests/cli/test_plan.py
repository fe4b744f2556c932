"""`headway plan` as text: the plan of a job and of a cluster, as far as their documents define it."""

from pathlib import Path

import pytest

from headway.cli.main import main

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: rack, count: 36, held_back: 18, cpus: 64, gpu: GB200-NVL72, gpus: 4, nvlink_domain: 72, imex: true, nics: [mlx5_0]}
  - {name: head, count: 1, cpus: 8}
fabrics:
  - {name: ib, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, groups: [rack]}
  - {name: objects, kind: object, url: "s3://training/checkpoints"}
versions: {driver: 570.124.06, cuda: "12.8"}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: moe
cluster: lab
nodes: 18
model: {preset: mixtral-8x7b}
layout: {pp: 2, tp: 4, ep: 2, schedule: Interleaved1F1B, virtual_stages: 2}
batch: {global: 144 sequences, micro: 1, sequence: 4096}
steps: 1000
trainer:
  kind: script
  options:
    argv: [job.yaml, "--tp={layout.tp}", "--name=a b"]
checkpoint: {tiers: [{kind: shared, every: 100 steps}], keep: 5}
limits: {attempt: {time: "1:30:00", gpu_hours: 108}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_plan_shows_command_model_pipeline_checkpoints_and_limits(folder: Path, capsys: Capture) -> None:
    assert main(["plan", "job.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("command: job.yaml --tp=4 '--name=a b'")
    assert lines[first + 1 : lines.index("environment of every rank") - 1] == [
        "model: 46,702,792,704 parameters, 12,879,925,248 of them active for a token",
        "expert parallelism: 2 ranks, folded over dp_shard x cp x tp",
        "pipeline schedule: Interleaved1F1B",
        "stages a rank: 2",
        "checkpoints in shared storage: every 100 steps, 5 stay",
        "longest attempt: 1h30m",
        "GPU-hours of an attempt: 108 at most",
    ]


def test_plan_shows_the_estimate_first_and_ranks_on_request(folder: Path, capsys: Capture) -> None:
    def heads(*options: str) -> list[str]:
        assert main(["plan", "job.yaml", *options]) == 0
        starts = ("estimate", "ranks", "environment", "files")
        return [line.split()[0].rstrip(":") for line in capsys.readouterr().out.splitlines() if line.startswith(starts)]

    assert heads() == ["estimate", "environment", "files"]
    assert heads("--ranks") == ["estimate", "ranks", "environment", "files"]


def test_top_without_a_search_is_a_usage_error(folder: Path, capsys: Capture) -> None:
    assert main(["plan", "job.yaml", "--top", "3"]) == 2
    assert "add `--search`" in capsys.readouterr().err


def test_plan_shows_the_corruption_checks_and_their_cost(folder: Path, capsys: Capture) -> None:
    (folder / "job.yaml").write_text(f"{JOB}resilience: {{corruption: {{compare: 2000 steps}}}}\n")
    assert main(["plan", "job.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "against silent corruption: replicas compared every 2000 steps" in lines
    assert "one older checkpoint: at least 2,000 steps behind the newest" in lines
    examples = Path(__file__).parents[2] / "examples" / "quickstart"
    (folder / "cluster.yaml").write_text((examples / "cluster.yaml").read_text())
    checks = "resilience: {corruption: {replay: 400 steps, grad_norm_factor: 10}}\n"
    (folder / "job.yaml").write_text((examples / "job.yaml").read_text() + checks)
    assert main(["plan", "job.yaml"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("against silent corruption")]
    assert line.endswith(
        "a step recomputed on other ranks every 400 steps (0.25 % of the time); "
        "and every step with a gradient norm above 10 times the usual"
    )


def test_plan_omits_what_the_job_does_not_set(folder: Path, capsys: Capture) -> None:
    lines = [
        line for line in JOB.splitlines() if not line.startswith(("model", "layout", "batch", "steps", "checkpoint", "limits"))
    ]
    (folder / "job.yaml").write_text("\n".join([*lines, ""]).replace("--tp={layout.tp}", "--tp=1"))
    assert main(["plan", "job.yaml"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[shown.index("command: job.yaml --tp=1 '--name=a b'") + 1] == ""


def test_plan_of_a_cluster_shows_spares_domains_storage_and_versions(folder: Path, capsys: Capture) -> None:
    assert main(["plan", "cluster.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert ["rack", "36", "18", "64", "4", "4", "x", "GB200-NVL72", "72", "GPUs", "mlx5_0"] in words
    assert ["head", "1", "-", "8", "1", "-", "-", "-"] in words
    first = lines.index("storage runs: /scratch/runs, shared (posix, nodes of `rack`)")
    assert lines[first + 1 : first + 3] == [
        "storage objects: s3://training/checkpoints (object)",
        "versions: driver 570.124.06, cuda 12.8",
    ]


def test_plan_of_a_folder_is_an_error(folder: Path, capsys: Capture) -> None:
    assert main(["plan", str(folder)]) == 2
    assert capsys.readouterr() == ("", f"error: {folder} is a folder; pass one document\n")


PODS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: superpod
scheduler: {kind: slurm}
node_groups:
  - name: a100
    count: COUNT
    cpus: 128
    gpu: A100-SXM-80
    gpus: 8
    nic: ConnectX-6
    nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
fabrics:
  - {name: ib, role: scale-out, transport: infiniband, switches: {model: QM8700, os: [{kind: opensm}]}}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "model", "nic", "pods"),
    [
        (140, "QM8700", "ConnectX-6", "8, one for each rail, of 7 leaves and 10 spines"),
        (512, "QM9700", "ConnectX-7", "4 of 128 nodes, 32 leaves and 32 spines"),
    ],
)
def test_plan_shows_whether_pods_are_rails_or_units(
    folder: Path, capsys: Capture, nodes: int, model: str, nic: str, pods: str
) -> None:
    file = folder / "superpod.yaml"
    file.write_text(PODS.replace("COUNT", str(nodes)).replace("QM8700", model).replace("ConnectX-6", nic))
    assert main(["plan", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"pods: {pods}" in lines
    # With the derived sizes stated the plan is the same.
    (stated,) = (line.removeprefix("written out: {").removesuffix("}") for line in lines if line.startswith("written out: "))
    file.write_text(file.read_text().replace(f"{{model: {model}", f"{{model: {model}, {stated}"))
    assert main(["plan", str(file)]) == 0
    assert f"pods: {pods}" in capsys.readouterr().out.splitlines()
