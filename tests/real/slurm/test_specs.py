"""Tests the jobs of tests/specs on a real Slurm without GPUs; a program replaces the training and records its arguments."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.compile import PlannedJob, compile_documents
from tests.faults.runs import LIMIT_S

from .cluster import SlurmCluster
from .configuration import Shape

pytestmark = [pytest.mark.slow, pytest.mark.variant]

SPECS = Path(__file__).parents[2] / "specs"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
SEEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "HF_TOKEN", "WANDB_API_KEY", "HF_HOME", "CUDA_DEVICE_MAX_CONNECTIONS")
# The arguments of each rank.
PROGRAM = f"""\
import json, os, sys
found = {{"argv": sys.argv[1:], **{{name: os.environ[name] for name in {SEEN!r} if name in os.environ}}}}
place = os.path.join(os.environ["SEEN"], os.environ["HEADWAY_RUN_ID"])
os.makedirs(place, exist_ok=True)
with open(os.path.join(place, os.environ["RANK"]), "w") as file:
    json.dump(found, file)
"""
PROGRAMS = {
    "torchtitan/__init__.py": "",
    "torchtitan/train.py": PROGRAM,
    "train.py": PROGRAM,
    "sft.py": PROGRAM,
    "pretrain.sh": f'exec {sys.executable} train.py "$@"\n',
}
# The reductions of each job for these nodes; everything else is as written.
SMALLER: Mapping[str, dict[str, Any]] = {
    "titan": {
        "nodes": 2,
        # A container may not raise this limit where these tests run.
        "setup": ["ulimit -c 0"],
        "layout": {"tp": 2, "dp_shard": 2},
        "batch": {"global": "4 sequences", "micro": 2, "sequence": 8192},
        "model": {"preset": "llama-3.2-1b"},
    },
    "mega": {
        "nodes": 2,
        "layout": {
            "tp": 2,
            "pp": 2,
            "virtual_stages": 6,
            "sequence_parallel": True,
            "schedule": "Interleaved1F1B",
            "dp_shard": 1,
        },
        "batch": {"global": "8 sequences", "micro": 1, "sequence": 2048},
        "model": {"preset": "gpt-3-175b", "vocab_size": 51200, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn_hidden": 3072},
    },
    "hf": {"gpus": 1, "batch": {"global": "32 sequences", "micro": 4, "sequence": 1}},
    "sweep": {"sweep": {"grid": {"optimizer.lr": [1e-4, 1e-3], "seed": [2]}}},
    "spot": {"nodes": {"min": 2, "max": 3}, "layout": {"tp": 2}},
}


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[SlurmCluster]:
    """Three nodes with two devices each, and the partitions, the reservation and the feature that the jobs name."""
    shape = Shape(nodes=3, cpus=192, gpus=2, memory_mib=2 << 20, partitions={"batch": "", "debug": "", "spot": ""})
    with SlurmCluster(shape) as cluster:
        for name in shape.node_names:
            cluster.run("scontrol", "update", f"nodename={name}", "availablefeatures=hbm3", "activefeatures=hbm3")
        yield cluster


@pytest.fixture
def reservation(cluster: SlurmCluster) -> Iterator[None]:
    where = ("starttime=now", "duration=60", "nodes=ALL", "users=root")
    cluster.run("scontrol", "create", "reservation=march", *where)
    yield
    cluster.run("scancel", "--user=root")
    for name in cluster.shape.node_names:
        cluster.wait_node(name, {"idle", "reserved", "maint"}, LIMIT_S)
    cluster.run("scontrol", "delete", "reservation=march")


def planned(name: str, folder: Path) -> tuple[PlannedJob, ...]:
    """The job of the spec, for nodes with two devices and without containers, whose storages are below `folder`."""
    documents = {each: yaml.safe_load((SPECS / f"{each}.yaml").read_text()) for each in (name, "slurm")}
    site, job = documents["slurm"], documents[name]
    del site["scheduler"]["options"]["containers"]
    site["node_groups"][0] |= {"count": 3, "gpus": 2, "nics": ["mlx5_0", "mlx5_1"]}
    site["fabrics"][1]["interface"] = "lo"
    for storage in site["storage"]:
        storage["path"] = f"{folder}{storage['path']}"
    for mount in job.pop("mounts", []):
        (folder / mount["source"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    del job["code"]
    # Spares are parked: two nodes compute here, and one waits.
    job |= SMALLER[name]
    for each, document in documents.items():
        (folder / f"{each}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    compiled = compile_documents([folder / f"{name}.yaml"])
    assert not compiled.problems.errors, [each.message for each in compiled.problems]
    return compiled.jobs


def run(cluster: SlurmCluster, job: PlannedJob, folder: Path) -> dict[int, dict[str, Any]]:
    """The observations of each rank of the job, once the job has completed."""
    (script,) = (text for path, text in job.files().items() if path.suffix == ".sbatch")
    (folder / f"{job.plan.name}.sbatch").write_text(script)
    for name, text in PROGRAMS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    environment = {"PATH": path, "SEEN": str(folder / "seen"), "HF_TOKEN": "hf", "WANDB_API_KEY": "wandb"}
    number = cluster.submit(folder / f"{job.plan.name}.sbatch", env=environment, cwd=folder)
    state = cluster.wait(number, ENDED, LIMIT_S)["JobState"]
    printed = "".join(each.read_text() for each in folder.glob("*.out"))
    assert state == "COMPLETED", printed
    (seen,) = (folder / "seen").glob(f"{job.plan.name}-*")
    return {int(each.name): json.loads(each.read_text()) for each in seen.iterdir()}


def run_directory(folder: Path, name: str) -> Path:
    (found,) = (folder / "lustre/runs").glob(f"{name}-*")
    return found


@pytest.mark.usefixtures("reservation")
def test_torchtitan_gets_its_flags_secrets_and_reservation(cluster: SlurmCluster, tmp_path: Path) -> None:
    (job,) = planned("titan", tmp_path)
    seen = run(cluster, job, tmp_path)
    assert sorted(seen) == [0, 1, 2, 3]
    argv = seen[3]["argv"]
    assert argv[:2] == [
        "--job.config_file=train_configs/llama3_8b.toml",
        f"--job.dump_folder={run_directory(tmp_path, 'titan-8b')}",
    ]
    assert {"--parallelism.data_parallel_shard_degree=2", "--compile.enable", "--checkpoint.interval=500"} <= set(argv)
    assert (seen[3]["WORLD_SIZE"], seen[3]["LOCAL_RANK"]) == ("4", "1")
    assert (seen[0]["HF_TOKEN"], seen[0]["WANDB_API_KEY"], seen[0]["HF_HOME"]) == ("hf", "wandb", "/lustre/data/hf")


def test_a_shell_script_around_megatron_gets_the_flags_of_the_spec(cluster: SlurmCluster, tmp_path: Path) -> None:
    (job,) = planned("mega", tmp_path)
    seen = run(cluster, job, tmp_path)
    assert sorted(seen) == [0, 1, 2, 3]
    argv = set(seen[0]["argv"])
    assert {
        "--tensor-model-parallel-size=2",
        "--num-layers-per-virtual-pipeline-stage=8",
        "--sequence-parallel",
        "--bf16",
    } <= argv
    assert f"--save={run_directory(tmp_path, 'mega-175b')}/checkpoints" in argv
    assert seen[0]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_fine_tuning_on_part_of_a_node_and_sweep_runs_share_a_node(cluster: SlurmCluster, tmp_path: Path) -> None:
    (job,) = planned("hf", tmp_path)
    seen = run(cluster, job, tmp_path)
    argv = seen[0]["argv"]
    assert (len(seen), seen[0]["WORLD_SIZE"]) == (1, "1")
    assert {"--gradient_accumulation_steps=8", "--total=32", "--bf16"} <= set(argv)
    assert f"--run_name={run_directory(tmp_path, 'hf-sft').name}" in argv
    for point in planned("sweep", tmp_path):
        (rank,) = run(cluster, point, tmp_path).values()
        rate = point.plan.name.split("-")[2].replace("p", ".")
        assert rank["argv"][:2] == [f"--lr={float(rate)!r}", "--seed=2"]
        assert rank["argv"][2] == f"--out={run_directory(tmp_path, point.plan.name)}/out"


def test_a_range_of_nodes_takes_the_free_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    (job,) = planned("spot", tmp_path)
    cluster.set_node("n3", "down", "test")
    try:
        seen = run(cluster, job, tmp_path)
    finally:
        cluster.mend_node("n3")
    assert sorted(seen) == [0, 1, 2, 3]
    assert "--tp=2" in seen[0]["argv"]
