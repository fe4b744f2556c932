"""Makes jobs of the frameworks' trainers, and runs the frameworks' parsers on their rendered files."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from headway.compile import Compiled, compile_documents
from headway.jobspec.plan import JobPlan

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers/trainers/bin/python"
MEGATRON = ROOT / ".venv-peers/megatron"
PARSER = Path(__file__).with_name("parse.py")

MODEL = {"vocab_size": 2048, "layers": 8, "hidden": 256, "heads": 8, "kv_heads": 8, "ffn_hidden": 1024}
EXPERTS = {"count": 8, "top_k": 2, "ffn_hidden": 512}


def cluster(ranks: int) -> dict[str, Any]:
    """Return a Slurm cluster with an H100 for each rank, or one node with fewer."""
    gpus = min(8, ranks)
    group = {"name": "h100", "count": ranks // gpus, "cpus": 96, "gpu": "H100-SXM-80", "gpus": gpus}
    nic = {"nic": "ConnectX-7", "nics": [f"mlx5_{index}" for index in range(gpus)]}
    return {
        "apiVersion": "headway/v1alpha1",
        "kind": "Cluster",
        "name": "gpus",
        "scheduler": {"kind": "slurm", "options": {"partition": "batch", "exclusive": True}},
        "node_groups": [group | nic],
        "fabrics": [
            {"name": "rails", "role": "scale-out", "transport": "infiniband"},
            {"name": "admin", "role": "management", "transport": "tcp", "interface": "eth0"},
        ],
        "storage": [{"name": "runs", "kind": "posix", "path": "/lustre/runs", "shared": True}],
    }


def job(kind: str, ranks: int, *, options: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a job of the kind with all required fields; `fields` replace whole fields, and None removes one."""
    found: dict[str, Any] = {
        "apiVersion": "headway/v1alpha1",
        "kind": "TrainingJob",
        "name": "one",
        "cluster": "gpus",
        "nodes": max(1, ranks // 8),
        "model": MODEL,
        "batch": {"global": f"{ranks * 4} sequences", "micro": 1, "sequence": 1024},
        "optimizer": {"lr": 0.0003, "warmup_steps": 10},
        "steps": 100,
        "seed": 7,
        "checkpoint": {"tiers": [{"kind": "shared", "every": "50 steps"}]},
        "trainer": {"kind": kind, "options": {**OPTIONS[kind], **(options or {})}},
        **fields,
    }
    return {name: value for name, value in found.items() if value is not None}


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "torchtitan": {"module": "llama3", "config": "llama3_debugmodel"},
    "megatron": {"arguments": {"mock_data": True, "tokenizer_type": "NullTokenizer", "eval_iters": 0}},
    "hf": {"script": "train.py"},
    "lightning": {"script": "train.py"},
    "deepspeed": {"script": "train.py"},
}


def compiled(document: Mapping[str, Any], ranks: int, folder: Path) -> Compiled:
    """Compile the job on a cluster of as many ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("cluster", cluster(ranks)), ("job", document)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return compile_documents([folder / "job.yaml"])


def planned(document: Mapping[str, Any], ranks: int, folder: Path) -> JobPlan:
    """Return the plan of a job without errors."""
    found = compiled(document, ranks, folder)
    errors = [f"{each.code} {each.message}" for each in found.problems if each.is_error]
    assert errors == [], errors
    (one,) = found.jobs
    return one.plan


def parsed(framework: str, plans: Sequence[JobPlan]) -> list[dict[str, Any]]:
    """Return the values that the framework's own parser reads from each plan, by dotted keys."""
    return parsed_and_keys(framework, plans)[0]


def parsed_and_keys(framework: str, plans: Sequence[JobPlan]) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the same, and all keys of a framework that is installed here."""
    python = str(PEERS) if framework in ("torchtitan", "megatron", "deepspeed") else sys.executable
    cases = [_case(plan) for plan in plans]
    given = {"framework": framework, "sources": [str(MEGATRON)], "cases": cases}
    done = subprocess.run(
        [python, str(PARSER)], input=json.dumps(given), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    answers = found["answers"]
    errors = [each["error"] for each in answers if "error" in each]
    assert errors == [], (errors, done.stderr[-3000:])
    return [each["config"] for each in answers], set(found["keys"])


def _case(plan: JobPlan) -> dict[str, Any]:
    options = plan.run.trainer.options
    own = {"ranks": plan.world_size, "environment": dict(plan.spec["environment"])}
    return {"argv": options["argv"], "files": options.get("files", {}), **own}
