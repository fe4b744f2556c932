"""A healthy fabric of each operating system, rendered by headway: examples/two-node-roce, cumulus and arista."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headway.compile import PlannedCluster, compile_documents
from headway.jobspec.resolve.environment import resolve_environment
from headway.templates.switches.nvue.tree import Tree, tree_text
from headway.templates.switches.opensm import OPENSM

EXAMPLES = Path(__file__).parents[3] / "examples"
STORY = EXAMPLES / "two-node-roce"
CLUSTERS = {
    "sonic": STORY / "slurm-cluster.yaml",
    "nvue": EXAMPLES / "cumulus" / "cluster.yaml",
    "eos": EXAMPLES / "arista" / "cluster.yaml",
    "pods": STORY / "kubernetes-cluster.yaml",
    "opensm": EXAMPLES / "infiniband" / "cluster.yaml",
}
_READ = {
    "headway-qos",
    "headway-qos.service",
    "90-headway-qos.conf",
    "config_db.json",
    "frr.conf",
    "startup.yaml",
    "startup-config",
    *OPENSM.readers,
    "opensm.conf",
}


@cache
def planned(os: str) -> PlannedCluster:
    (cluster,) = compile_documents([CLUSTERS[os]], kinds=("Cluster",)).clusters
    return cluster


def files(os: str) -> dict[str, str]:
    """Return all files of the fabric by path, and a job's variables; those of NVUE as `nv set` commands, for mutations by line."""
    rendered = CLUSTERS[os].parent / "rendered"
    tree = planned(os).plan.name
    found = {
        str(path.relative_to(rendered)): path.read_text()
        for path in sorted((rendered / tree).rglob("*"))
        if path.is_file() and path.name in _READ
    }
    if os == "pods":
        job = rendered / "small-llama" / tree / "kubernetes" / "job.yaml"
        return {**found, str(job.relative_to(rendered)): job.read_text()}
    if os == "sonic":
        job = rendered / "small-llama" / tree / "slurm" / "job.sbatch"
        return {**found, str(job.relative_to(rendered)): job.read_text()}
    plan = planned(os).plan
    variables = "".join(f"export {each.name}={each.value}\n" for each in resolve_environment(plan, plan.groups[0]))
    return {name: commands(text) if name.endswith("startup.yaml") else text for name, text in found.items()} | {
        "job/job.env": variables
    }


def commands(text: str) -> str:
    """Return the `nv set` commands of a startup.yaml."""
    if not text.startswith("# "):
        return text
    (document,) = yaml.load(text, yaml.CBaseLoader)
    return "".join(f"nv set {shlex.join(words)}\n" for words in _paths(document["set"]))


def _paths(tree: Mapping[str, Any]) -> Iterator[list[str]]:
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            yield [key, value]
        elif not value:
            yield [key]
        else:
            yield from ([key, *rest] for rest in _paths(value))


def as_yaml(text: str) -> str:
    """Return the startup.yaml of `nv set` commands; other texts unchanged."""
    if not text.startswith("nv set "):
        return text
    tree: Tree = {}
    for line in text.splitlines():
        node = tree
        for word in shlex.split(line)[2:]:
            node = node.setdefault(word, {})
    return tree_text(tree, ())
