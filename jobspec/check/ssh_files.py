"""Checks the files with which a cluster's hosts and switches are reached over SSH: the key, and the keys of the hosts."""

from collections.abc import Iterator

from headway.jobspec.document import Document, Path
from headway.jobspec.flow import flow
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.suggest import file_like


def check_ssh_files(cluster: Document) -> Iterator[Problem]:
    """Yield a problem for a public key in place of the private one, and a warning for a missing file of the repository."""
    for place in _places(cluster):
        key, hosts = cluster.value((*place, "identity")), cluster.value((*place, "known_hosts"))
        if isinstance(key, str) and key.endswith(".pub"):
            private = key.removesuffix(".pub")
            message = f"`{key}` is a public key; to log in, ssh needs the private one"
            yield Problem("HW703", CLUSTER, (*place, "identity"), message, f"write `{private}`", fix=flow(private))
        # A home's files are those of the user who runs the command.
        path = (*place, "known_hosts")
        if isinstance(hosts, str) and hosts and not hosts.startswith(("/", "~")) and not (cluster.folder(path) / hosts).exists():
            near = file_like(cluster.folder(path), hosts)
            hint = f"did you mean `{near}`?" if near else f"add it, for example by `ssh-keyscan HOST >> {hosts}`, or leave it out"
            message = f"there is no file `{hosts}` beside this document"
            yield Problem("HW412", CLUSTER, path, message, hint, Severity.WARNING, fix=near)


def _places(cluster: Document) -> Iterator[Path]:
    """Yield where a cluster names them: for its hosts, its login node, and its switches."""
    yield from (("provider", "options"), ("scheduler", "options", "login"))
    for fabric in range(_length(cluster, ("fabrics",))):
        systems: Path = ("fabrics", fabric, "switches", "os")
        yield from ((*systems, number, "options", "login") for number in range(_length(cluster, systems)))


def _length(cluster: Document, path: Path) -> int:
    found = cluster.value(path)
    return len(found) if isinstance(found, list) else 0
