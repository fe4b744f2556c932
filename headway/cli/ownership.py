"""Determines which files in a folder of rendered files are headway's, which are stale, and which are in the way."""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from headway.infra.tree import blocked, compare_tree, files_below
from headway.jobspec.load import load_file
from headway.jobspec.parse import kind_of
from headway.templates.hosts.render import NETPLAN, NETWORKD, SCRIPT, UNIT
from headway.templates.kind import Files
from headway.templates.switches import SWITCHES

# A plan of headway also after a merge that has left its marks in the text.
_PLAN = re.compile(rb'"schema"\s*:\s*"headway\.(job|cluster)-plan/')
# What an earlier headway has also rendered for a job; rendering again removes it.
_EARLIER = ("run.json", "nccl.env")
# Below its folder, what a job and what a cluster are rendered to.
_JOB_FILES = ("plan.json", "kubernetes/job.yaml", "local/run.sh", "slurm/job.sbatch", *_EARLIER)
_CLUSTER_FILES = (
    "plan.json",
    "slurm/topology.conf",
    "slurm/topology.yaml",
    "slurm/node-check",
    *(f"hosts/*{path.with_stem(path.stem + ending)}" for path in (SCRIPT, UNIT, NETPLAN) for ending in ("", "-*")),
    f"hosts/*{NETWORKD}",
    *(
        f"{place}/*/{file}"
        for place in ("switches", "fabrics")
        for kind in SWITCHES.values()
        for file in (kind.file, *kind.others)
    ),
)


def stale_files(root: Path, trees: Collection[PurePosixPath], unread: Collection[Path]) -> list[PurePosixPath]:
    """Files in `root` that an earlier name of a job or a cluster has left: nothing renders into their trees any more.

    `trees` are rendered into now; a tree stays, too, if it was rendered from one of the files `unread` next to the documents.
    """
    stale = [] if root.is_symlink() else [tree for tree in _planned_trees(root) if tree not in trees]
    kept = _names(unread) if stale else set()
    gone = [tree for tree in stale if tree.parts[0] not in kept]
    return [file for tree in gone for file in files_below(root, tree) if is_rendered(file, tree)]


def occupants(tree: PurePosixPath, files: Files, root: Path) -> Iterator[tuple[str, str]]:
    """Yield problems for files in the place of the tree that it did not make, with the remedy."""
    if obstacle := blocked(root, tree):
        what = "a symbolic link" if obstacle.is_symlink() else "a file"
        yield f"`{obstacle}` is {what}, where the rendered files belong", "move it away, or set another folder with `-o`"
        return
    if len(tree.parts) == 1 and (jobs := sorted(path.parent.name for path in (root / tree).glob("*/plan.json"))):
        message = f"`{tree}` holds the files of a job of that name, for {', '.join(jobs)}"
        yield message, "rename the cluster, or remove the job's files if there is no such job"
    if len(tree.parts) == 2 and _kind_of_tree(root / tree.parts[0]) == "cluster":
        message = f"`{tree.parts[0]}` holds the files of a cluster of that name"
        yield message, "rename the job, or remove the cluster's files if there is no such cluster"
    if _kind_of_tree(root / tree) != ("cluster" if len(tree.parts) == 1 else "job"):
        for difference in (found for found in compare_tree(root, files, [tree]) if found.what != "missing"):
            message = f"`{root / difference.path}` may not be headway's: no plan.json in `{tree}` records that headway wrote it"
            yield message, "move it away or remove it, or set another folder with `-o`"


def _planned_trees(root: Path) -> Iterator[PurePosixPath]:
    """Return the folders below `root` whose plan shows that a job or a cluster was rendered there."""
    for file in (*root.glob("*/plan.json"), *root.glob("*/*/plan.json")):
        tree = PurePosixPath(file.parent.relative_to(root).as_posix())
        if _planned_tree(file) == tree and not blocked(root, tree):
            yield tree


def _planned_tree(file: Path) -> PurePosixPath | None:
    """Where the plan in the file is rendered to; None when it is no plan of headway's."""
    try:
        plan = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(plan, dict):
        return None
    schema = str(plan.get("schema"))
    if schema.startswith("headway.job-plan/"):
        return PurePosixPath(str(plan.get("name")), str(plan.get("cluster")))
    return PurePosixPath(str(plan.get("name"))) if schema.startswith("headway.cluster-plan/") else None


def _names(files: Collection[Path]) -> set[str]:
    """The names of the documents among files that the search passes by: by their own path they can be rendered all the same."""
    documents = [load_file(file)[0] for file in files if file.is_file()]
    return {str(document.value(("name",))) for document in documents if kind_of(document) is not None}


def is_rendered(file: PurePosixPath, tree: PurePosixPath) -> bool:
    """Return whether a job or a cluster in the folder `tree` has such a file; other files there belong to the user."""
    names = _JOB_FILES if len(tree.parts) == 2 else _CLUSTER_FILES
    return any(PurePosixPath("/", file.relative_to(tree)).match(f"/{name}") for name in names)


def _kind_of_tree(folder: Path) -> str | None:
    """Whether a `job` or a `cluster` has been rendered into the folder itself; None when neither."""
    file = folder / "plan.json"
    found = _PLAN.search(file.read_bytes()) if file.is_file() else None
    return found and found.group(1).decode()
