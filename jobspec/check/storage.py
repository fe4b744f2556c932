"""Checks storage: each has the location that its kind needs, and one file system holds the runs."""

import re
from collections.abc import Iterator
from posixpath import normpath

from headway.jobspec.check.names import check_unique, group_hint
from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.placement import USER
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.storage import Storage
from headway.jobspec.suggest import listed

# Directories that hold a node's temporary files (file-hierarchy(7)).
_OF_EACH_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")


def check_storage(cluster: Cluster) -> Iterator[Problem]:
    """Check each storage, and that the runs have one."""
    yield from check_unique(CLUSTER, ("storage",), "name", [storage.name for storage in cluster.storage])
    for index, storage in enumerate(cluster.storage):
        yield from _check_place(("storage", index), storage)
        yield from _check_path(("storage", index), storage)
        yield from _check_user(index, cluster)
    shared = [index for index, storage in enumerate(cluster.storage) if storage.shared and storage.kind == "posix"]
    if not shared:
        hint = "runs need a directory that every node sees: set `shared: true` on a storage of the kind `posix`"
        if not any(storage.kind == "posix" for storage in cluster.storage):
            example = "`{name: scratch, kind: posix, path: /scratch/runs, shared: true}`"
            hint = f"runs need a directory that every node sees: add it to `storage`, for example {example}"
        yield Problem("HW702", CLUSTER, ("storage",), "no file system is shared", hint, at_key=True)
    else:
        yield from _check_chain(shared[0], cluster)


def check_shared(cluster: Cluster) -> Iterator[Problem]:
    """Warn about directories that the document calls shared, and that each node usually has to itself."""
    if cluster.scheduler.kind == "local" or sum(nodes.count for nodes in cluster.node_groups) == 1:
        return
    for index, storage in enumerate(cluster.storage):
        if storage.shared and storage.path is not None and normpath(storage.path).startswith(_OF_EACH_NODE):
            message = f"`{storage.path}` is usually each node's own, but `{storage.name}` is `shared`"
            hint = "set the directory of a file system that all nodes mount, for example `path: /scratch/runs`"
            yield Problem("HW703", CLUSTER, ("storage", index, "path"), message, hint, Severity.WARNING)


def check_storage_groups(cluster: Cluster) -> Iterator[Problem]:
    """Check that the groups of nodes that reach a storage exist."""
    known = [nodes.name for nodes in cluster.node_groups]
    if len(set(known)) < len(known):
        # One of the two with the same name may be meant.
        return
    for index, storage in enumerate(cluster.storage):
        for place, group in enumerate(storage.groups):
            if group not in known:
                message = f"`{storage.name}` is for the nodes `{group}`, but no group has that name"
                at = ("storage", index, "groups", place)
                near = group_hint(group, {nodes.name: nodes.gpu is not None for nodes in cluster.node_groups})
                yield Problem("HW236", CLUSTER, at, message, near.text, fix=near.fix)


def _check_chain(index: int, cluster: Cluster) -> Iterator[Problem]:
    """Check that exclusive creation works: it decides which process writes to a run. On a file system it is a hard
    link, which is created whole and once only (open(2), O_EXCL)."""
    runs = cluster.storage[index]
    if not runs.hard_links:
        message = f"`{runs.name}` holds the runs but has no hard links: two writers could both believe that they own a run"
        other = [storage.name for storage in cluster.storage if storage.shared and storage.kind == "posix" and storage.hard_links]
        hint = f"put {listed(other[:1])} first" if other else "add a shared file system that has them, and put it first"
        yield Problem("HW712", CLUSTER, ("storage", index, "hard_links"), message, hint)


def _check_place(path: Path, storage: Storage) -> Iterator[Problem]:
    """Check that a file system has a path, an object store a URL, and that every node sees its content."""
    own, other = ("path", "url") if storage.kind == "posix" else ("url", "path")
    if storage.kind == "object" and storage.url is None and storage.path is not None and "://" in storage.path:
        message = "the place of an object store is its `url`, not its `path`"
        yield Problem("HW210", CLUSTER, (*path, "path"), message, "write `url` in place of `path`", at_key=True, fix="url")
        return
    if getattr(storage, own) is None and getattr(storage, other) is not None:
        message = f"the place of a storage of the kind `{storage.kind}` is its `{own}`, not its `{other}`"
        example = "s3://BUCKET/PREFIX" if own == "url" else "/scratch/runs"
        hint = f"write `{own}`, for example `{own}: {example}`, or change the kind"
        yield Problem("HW210", CLUSTER, (*path, other), message, hint, at_key=True)
        return
    if getattr(storage, other) is not None:
        hint = f"a storage of the kind `{storage.kind}` has a `{own}`; leave `{other}` out, or change the kind"
        yield Problem("HW210", CLUSTER, (*path, other), f"`{other}` does not belong to `kind: {storage.kind}`", hint, at_key=True)
    if getattr(storage, own) is None:
        example = "/scratch/runs" if own == "path" else "s3://training/checkpoints"
        message = f"`{storage.name}` has no location"
        yield Problem("HW210", CLUSTER, path, message, f"set its `{own}`, for example `{own}: {example}`")
    if storage.kind == "object" and "shared" in storage.model_fields_set and not storage.shared:
        message = "an object store is always shared"
        yield Problem("HW210", CLUSTER, (*path, "shared"), message, "leave `shared` out")
    if storage.kind == "object" and "hard_links" in storage.model_fields_set:
        message = "an object store has no hard links and needs none: runs are on a file system"
        yield Problem("HW210", CLUSTER, (*path, "hard_links"), message, "leave `hard_links` out", at_key=True)


def _check_user(index: int, cluster: Cluster) -> Iterator[Problem]:
    """Check that only the path of the runs depends on the user, in whole names of folders."""
    storage = cluster.storage[index]
    if storage.path is None or USER not in storage.path:
        return
    at = ("storage", index, "path")
    runs = next((each for each, other in enumerate(cluster.storage) if other.shared and other.kind == "posix"), None)
    if index != runs:
        message = f"`{USER}` in the path of `{storage.name}` would be taken literally: only the path of the runs has a user"
        yield Problem("HW703", CLUSTER, at, message, "write the path out")
    elif any(USER in part and part != USER for part in storage.path.split("/")):
        yield Problem(
            "HW703", CLUSTER, at, f"`{USER}` is a part of a folder's name", f"make it a whole one, as in `/scratch/{USER}/runs`"
        )


def _check_path(path: Path, storage: Storage) -> Iterator[Problem]:
    found, at = storage.path, (*path, "path")
    if found is None or storage.kind != "posix":
        return
    if not found.strip() or not found.isprintable():
        what = "is blank" if not found.strip() else "has a line break or another non-printable character"
        message, hint = f"the path of `{storage.name}` {what}", "set a directory, for example `path: /scratch/runs`"
        yield Problem("HW703", CLUSTER, at, message, hint)
    elif (scheme := found.partition("://")[0]) != found:
        message = f"`{found}` is the URL of an object store, and a storage of the kind `posix` is a directory"
        hint = f"write `kind: object` and `url: {found}`; runs need a shared directory besides"
        if scheme == "file":
            hint = f"write `path: {found.removeprefix('file://')}`"
        yield Problem("HW703", CLUSTER, at, message, hint)
    elif served := re.fullmatch(r"[A-Za-z0-9][\w.-]+:(/.*)", found):
        message = f"`{found}` is a path on a server; `path` is the directory on the nodes"
        yield Problem("HW703", CLUSTER, at, message, f"write the directory where it is mounted, for example `path: {served[1]}`")
    elif re.match(r"[A-Za-z]:[\\/]|\\\\", found):
        message = f"`{found}` is a path of Windows, which Linux takes as the name of a file in the current directory"
        yield Problem("HW703", CLUSTER, at, message, "write the path as the nodes see it, for example `path: /scratch/runs`")
    elif found.startswith("~") or "$" in found:
        message = f"`{found}` would be taken literally: `~` and `$` are not expanded"
        meant = re.sub(r"^~(?=/)", f"/home/{USER}", re.sub(r"\$\{?(?:USER|LOGNAME)\}?", USER, found))
        whole = "$" not in meant and "~" not in meant
        hint = f"write the path out, `{meant}` where it has the user's name" if whole else "write the path out"
        yield Problem("HW703", CLUSTER, at, message, hint)
    elif re.search(r"\{[A-Za-z_][\w.-]*\}", found.replace(USER, "")):
        message = f"the braces of `{found}` would be taken literally: only `{USER}` stands for a name"
        yield Problem("HW703", CLUSTER, at, message, f"write `{USER}` for the user, or the path out")
    elif normpath(found) in ("/", "//"):
        message = f"`{found}` is the root of each node's own files"
        yield Problem("HW703", CLUSTER, at, message, "set the directory where it is mounted, for example `path: /scratch`")
