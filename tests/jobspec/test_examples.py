"""The examples of docs/spec.md: each is accepted as part of a complete document, and each section has one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli.main import main
from headway.cli.verbs.schema import TABLES
from headway.jobspec.catalog.table import rows
from headway.jobspec.reference import headings
from headway.templates.trainers.script.arguments import LATE, NAMES

EXAMPLES: dict[str, str] = {**rows("examples")}  # type: ignore[dict-item]
# Sections without an example: a complete document is in docs/guide.md, and `health` is not implemented yet.
WITHOUT = {"Cluster", "TrainingJob", "Inventory", "Cluster: health", "Scheduler local", "Trainer builtin"}

# Warnings about things that a part of a document cannot have: a site's own files, and a script that reads every value.
EXPECTED = {
    **{each: {"HW513"} for each in EXAMPLES if each.startswith(("Inventory", "Operating")) and not each.endswith("opensm")},
    "Cluster: fabrics.switches": {"HW513"},
    **{each: {"HW313"} for each in ("Trainer script", "Trainer hf", "Trainer lightning")},
    "Trainer deepspeed": {"HW313", "HW427"},
    # 671e9 parameters on 64 GPUs.
    "TrainingJob: model.latent_attention": {"HW427"},
}

GPUS = {
    "name": "gpu",
    "count": 8,
    "cpus": 96,
    "host_memory": "2TiB",
    "gpu": "H100-SXM-80",
    "gpus": 8,
    "nics": [f"mlx5_{index}" for index in range(8)],
    "nic": "ConnectX-7",
    "hosts": [f"10.0.0.{11 + index}" for index in range(8)],
}
FABRIC = {
    "name": "rails",
    "role": "scale-out",
    "transport": "roce",
    "classes": [{"name": "collectives", "carries": "collectives", "dscp": 26, "lossless": True}],
}
CLUSTER = {
    "apiVersion": "headway/v1alpha1",
    "kind": "Cluster",
    "name": "iron",
    "scheduler": {"kind": "slurm"},
    "node_groups": [GPUS],
    "fabrics": [FABRIC, {"name": "admin", "role": "management", "transport": "tcp", "interface": "eth0"}],
    "storage": [{"name": "runs", "kind": "posix", "path": "/scratch/runs", "shared": True}],
}
PODS = {
    "kind": "kubernetes",
    "options": {
        "image": f"registry.example.com/headway@sha256:{'4f' * 32}",
        "mounts": [{"path": "/scratch", "claim": "scratch"}],
        "host_network": True,
        "rdma": {"resource": "rdma/hca_shared_devices_a"},
    },
}
# Every value that the job sets is an argument.
RUN = ["train.py", *(f"--{name}={{{name}}}{{?{name}}}" for name in NAMES if name not in {"runs", *LATE})]
JOB = {
    "apiVersion": "headway/v1alpha1",
    "kind": "TrainingJob",
    "name": "example",
    "cluster": "iron",
    "nodes": 4,
    "model": {"preset": "llama-3.1-8b"},
    "run": RUN,
}
# Fields that trainers other than scripts require.
WHOLE = {
    "layout": {"dp_shard": 32},
    "batch": {"global": "256 sequences", "micro": 1, "sequence": 4096},
    "optimizer": {"lr": 3e-4, "warmup_steps": 200},
    "steps": 2000,
    "checkpoint": {"tiers": [{"kind": "shared", "every": "100 steps"}]},
}


def test_every_section_has_an_example() -> None:
    assert set(EXAMPLES) | WITHOUT == set(headings(TABLES))
    assert not set(EXAMPLES) & WITHOUT


def part_of(example: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(EXAMPLES[example])
    return found


def job_with(part: dict[str, Any]) -> dict[str, Any]:
    whole = {**JOB, **WHOLE, **part}
    # A trainer replaces the script.
    return {name: value for name, value in whole.items() if name != "run" or not {"trainer", "data"} & part.keys()}


def documents(example: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a folder with the example in one of them, by the names of their files."""
    part, root = part_of(example), example.partition(":")[0].partition(" ")[0]
    if root in ("Cluster", "Scheduler", "Provider", "Operating"):
        return {"iron.yaml": {**CLUSTER, **part}}
    if root == "Inventory":
        fabrics = part_of("Cluster: fabrics.switches")["fabrics"]
        inventory = {"apiVersion": "headway/v1alpha1", "kind": "Inventory", "name": "unit-1", "cluster": "iron", **part}
        return {"iron.yaml": {**CLUSTER, "fabrics": fabrics}, "inventory.yaml": inventory}
    return {
        "job.yaml": job_with(part),
        "iron.yaml": CLUSTER,
        "pods.yaml": {**CLUSTER, "name": "pods", "scheduler": PODS},
        "containers.yaml": {**CLUSTER, "name": "containers", "scheduler": {"kind": "slurm", "options": {"containers": "pyxis"}}},
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_document_with_the_example_is_accepted(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, document in documents(example).items():
        (tmp_path / file).write_text(yaml.safe_dump(document))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--format", "json", "."]) == 0
    found = json.loads(capsys.readouterr().out)["problems"]
    assert {problem["code"] for problem in found} == EXPECTED.get(example, set())
