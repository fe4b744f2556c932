"""Starts standby workers before the command line is parsed, by a guess at its contents; ends them if the guess was wrong."""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.runner.agent import warm
from headway.runner.agent.processes import kill_group
from headway.runner.start import START

_PROCS = re.compile(r"--?nproc[-_a-z]*(?:=(?P<value>.*))?")
# With these a worker does not run headway's module, sees a device of its own, or is bound to processors before it
# starts.
_OTHERWISE = ("--no-python", "--no_python", "--virtual", "--numa", "-h", "--help")
# Flags of torchrun without a value; it accepts any unambiguous prefix.
_SWITCHES = ("--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank")
# Workers must not get these.
_OURS = frozenset({"HEADWAY_SECRET", "HEADWAY_RUN", "HEADWAY_TERMINAL_FD"})


@dataclass(frozen=True)
class Begun:
    """Standbys by local rank, and their number of threads; None: not set."""

    standbys: Mapping[int, warm.Standby]
    threads: str | None = None

    def pass_on(self, procs: int, environment: Mapping[str, str], *, are_ours: bool) -> str | None:
        """Return the value of warm.PASSED_ON if `procs` workers under `environment` would start like the standbys;
        otherwise end them."""
        same = environment.get("OMP_NUM_THREADS") == self.threads and "HEADWAY_CPUS" not in environment
        if are_ours and same and len(self.standbys) == procs:
            return warm.pass_on(self.standbys)
        for standby in self.standbys.values():
            kill_group(standby.pid, signal.SIGKILL)
        return None


def begin(argv: Sequence[str], environment: Mapping[str, str]) -> Begun:
    """Start as many standbys as there will be workers. They end with this process, also after exec."""
    if any(word.startswith(_OTHERWISE) for word in argv) or "PYTHON_EXEC" in environment:
        return Begun({})
    procs = guessed_procs(argv, environment)
    threads = environment.get("OMP_NUM_THREADS", "1" if procs > 1 else None)
    seen = {name: value for name, value in environment.items() if name not in _OURS}
    if threads is not None:
        seen["OMP_NUM_THREADS"] = threads
    if "HEADWAY_TERMINAL_FD" in environment:
        os.set_inheritable(int(environment["HEADWAY_TERMINAL_FD"]), False)
    worker = [sys.executable, "-u", START, "headway.runner.boot", *argv]
    try:
        modules = warm.first_imports(script_words(argv))
        standbys = {each: warm.start_standby(worker, seen, seen, modules, first=True, stdin=True) for each in range(procs)}
    except OSError:
        # Standbys are optional.
        return Begun({})
    return Begun(standbys, threads)


def guessed_procs(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the workers of this node if --nproc-per-node is a number, or the number of GPUs; 0 otherwise."""
    said = environment.get("PET_NPROC_PER_NODE", "1")
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if (found := _PROCS.fullmatch(word)) is not None:
            said = following if found["value"] is None else found["value"]
            break
    if said in ("gpu", "auto"):
        return sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return int(said) if said.isdecimal() else 0


def script_words(argv: Sequence[str]) -> list[str]:
    """Return the script with its arguments, after `-m` if it is a module; `-m` alone if there is none."""
    words, is_module = iter(argv), False
    for word in words:
        if not word.startswith("-"):
            return [*(["-m"] if is_module else []), word, *words]
        name = word.replace("_", "-")
        is_switch = name == "-m" or (len(name) > 2 and any(switch.startswith(name) for switch in _SWITCHES))
        is_module = is_module or name == "-m" or (is_switch and name.startswith("--mod"))
        if not is_switch and "=" not in word:
            next(words, None)
    return ["-m"]
