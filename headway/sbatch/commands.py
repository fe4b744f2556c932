"""Sorts the commands of batch scripts: those that print, those that set something up, and those that find where ranks meet."""

import re
from collections.abc import Sequence

from headway.sbatch.text import Text, as_shell, names

PRINTS = names(
    """
    echo printf date hostname nvidia-smi rocm-smi pwd which type whoami id env printenv cat uname lscpu numactl free df du ls squeue
    sinfo scontrol sacct seff sstat nproc ibstat ibv_devinfo ibdev2netdev lspci nvcc hostnamectl uptime tail head tee wc sort grep
    awk sed jq git clear df-h module-list ldd
    """
)
SHELL = names(
    """
    set shopt true : wait sleep return break continue local hash disown enable builtin kill read popd dirs getopts shift
    """
)
ENDS_SCRIPT = ("exit",)
SETS_UP = names(
    """
    module ml source . conda mamba micromamba pyenv spack eval ulimit umask mkdir modprobe nix-shell poetry uv
    """
)
_QUIET = ("module", "ml", "spack")
_CONDA_HOOK = re.compile(
    r"\$\(\s*(?:\S*/)?(conda|mamba|micromamba) (?:shell\.bash hook|shell hook (?:-s|--shell)[ =]bash)(.*)\)", re.DOTALL
)


def is_rendezvous_command(words: Sequence[Text]) -> bool:
    """Return whether a command only finds out or prints where ranks meet."""
    shown = " ".join(word.shown for word in words)
    return re.search(r"\bhostname\b\s*(-\S+|--\S+)*\s*$", shown) is not None and "srun" in shown and "bash" not in shown


def setup_line(name: str, words: Sequence[Text]) -> str | None:
    """Return the line of POSIX shell for `setup` that does the same; None where there is none."""
    if name in ("source", "."):
        if len(words) < 2:
            return None
        file = words[1]
        path = as_shell(file)
        if (file.literal is not None and "/" not in file.literal) or not file.parts:
            path = f"./{path}"
        return " ".join([".", path, *map(as_shell, words[2:])])
    if name == "eval":
        hook = _CONDA_HOOK.search(words[1].shown) if len(words) > 1 else None
        return f'eval "$({hook[1]} shell.posix hook)"' if hook else None
    if name in ("poetry", "uv", "nix-shell", "modprobe"):
        return None
    return " ".join(map(as_shell, words))


def is_portable(file: str) -> bool:
    """Return whether a file that scripts source is known to be POSIX shell: those of venv, conda and Environment Modules."""
    return re.search(r"(?:bin/activate|conda\.sh|mamba\.sh|modules\.sh|lmod\.sh|/init/sh)$", file) is not None
