"""Lists what runs under both launchers: headway's own scripts, and unmodified modules of installed packages.

A variant is another case of a property that an unmarked scenario, tests/runner/torchrun/ or tests/faults/test_saved.py covers.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from .harness import SCRIPTS, Scenario

ROOT = Path(__file__).parents[2]

WAYS = (
    "last line",
    "exit 0",
    "exit None",
    "thread",
    "daemon",
    "thread raises",
    "exit in a thread",
    "atexit raises",
    "unraisable",
    "_exit 0",
    "closed stdout",
    "closed descriptors",
    "exec",
    "fork",
)
FAILING_WAYS = (
    "exit 3",
    "exit text",
    "exit 256",
    "exception",
    "group",
    "cause",
    "note",
    "syntax",
    "interrupt",
    "_exit 7",
    "abort",
    "killed",
    "terminated",
)


# The scenarios "surroundings" and "one of two raises" end by exec and by an exception; tests/runner/boot/test_ending.py compares these
# ways in one process each.
def _ends(way: str, *, fails: bool) -> Scenario:
    return Scenario("ends.py", words=(way,), fails=fails, named=f"ends by {way}", variant=True)


ENDS = (
    *(_ends(way, fails=False) for way in WAYS),
    *(_ends(way, fails=True) for way in FAILING_WAYS if way != "exit 256"),
    # The exit code that the system sees is 0.
    _ends("exit 256", fails=False),
    Scenario("unflushed.py", variant=True),
    Scenario("excepthook.py", fails=True, variant=True),
    Scenario("again_by_exec.py", ranks=2, variant=True),
    Scenario("early_leavers.py", ranks=2, words=("1",), named="leaves behind a barrier", variant=True),
    Scenario("early_leavers.py", ranks=2, words=("at once",), named="leaves at once", variant=True),
    Scenario("background.py", words=("a background child",), variant=True),
    Scenario("waits.py", variant=True),
    Scenario("error_lines.py", fails=True, variant=True),
    Scenario("recorded.py", fails=True, variant=True),
    Scenario("one_rank_raises.py", ranks=2, words=("",), fails=True, variant=True),
    Scenario("one_rank_raises.py", ranks=2, words=("early",), fails=True, named="one rank ends early", variant=True),
    Scenario("one_of_two_raises.py", ranks=2, fails=True, named="one of two raises"),
)

# Python's variables reach every process of a run, and their effects must not show in a script.
OF_PYTHON = {
    "PYTHONHASHSEED": "7",
    "PYTHONWARNINGS": "default",
    "PYTHONOPTIMIZE": "1",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONINTMAXSTRDIGITS": "1000",
    "PYTHONNOUSERSITE": "1",
    "LC_ALL": "C",
}

REDIRECTED = ("--log-dir", "logs", "-r", "3", "-t", "0:1")
# Names of modules that processes of the launchers import.
SHADOWS = ("headway", "json", "secrets", "queue", "select", "numpy", "torch", "msgspec", "xxhash", "runner")

SURROUNDINGS = (
    Scenario(
        "one_after_another.py",
        words=("environment.py", "python_state.py", "descriptors.py", "handlers.py", "output.py"),
        variant=True,
    ),
    Scenario("environment.py", ranks=2, words=("--lr", "3e-4", "", "a b"), variant=True),
    Scenario("environment.py", environment=OF_PYTHON, named="environment with Python's variables", variant=True),
    # torchrun runs it in a child of multiprocessing, without its folder on the module path: docs/script.md.
    Scenario("training.py", environment={"PYTHONPATH": str(SCRIPTS)}, flags=("--run-path",), named="run path", variant=True),
    Scenario("python_state.py", variant=True),
    Scenario("descriptors.py", variant=True),
    # Several of the following for one start of the launchers.
    Scenario(
        "main_module.py",
        words=("shadowed", "environment", "children", "another_program"),
        stdin=b"for the child",
        present=SHADOWS,
        named="surroundings",
    ),
    Scenario("main_module.py", variant=True),
    Scenario("main_module.py", relative=True, named="script by a relative path", variant=True),
    Scenario("variables_first.py", ranks=2, variant=True),
    Scenario("stdin.py", stdin=b"one\ntwo\nthree\nfour", variant=True),
    Scenario("children.py", stdin=b"for the child", variant=True),
    Scenario("handlers.py", variant=True),
    Scenario("output.py", variant=True),
    Scenario("profiled.py", variant=True),
    Scenario("pools.py", variant=True),
    Scenario("loaders.py", variant=True),
    Scenario("shared_memory.py", ranks=2, variant=True),
    Scenario("shadowed.py", present=SHADOWS, variant=True),
    Scenario("program.sh", flags=("--no-python",), words=("a b",), stdin=b"piped\n", named="program", variant=True),
    Scenario("package", flags=("-m",), words=("--flag",), environment={"PYTHONPATH": f"{ROOT}:{SCRIPTS}"}, variant=True),
    # When torchrun shows output that is redirected to files, it tears lines if there are many.
    Scenario("stdin.py", stdin=b"one\ntwo\nthree", flags=REDIRECTED, named="redirected output", variant=True),
    Scenario(
        "program.sh",
        flags=("--no-python", *REDIRECTED),
        words=("a b",),
        stdin=b"piped\n",
        named="redirected program",
    ),
    Scenario("recorded.py", flags=("--log-dir", "logs", "-t", "3"), fails=True, named="teed output of a failure", variant=True),
    Scenario("spawns_ranks.py", several=True, variant=True),
    Scenario("whole_folder.py", environment={"HEADWAY_RUNS": ""}, variant=True),
)

TRAINING = (
    Scenario("training.py", variant=True),
    Scenario("compiled.py", variant=True),
    Scenario("groups.py", ranks=2, variant=True),
    Scenario("collectives.py", ranks=2, variant=True),
    Scenario("stores.py", ranks=2, variant=True),
    Scenario("remote_calls.py", ranks=2, variant=True),
    Scenario("data_parallel.py", ranks=2, variant=True),
    Scenario("sharded.py", ranks=2, variant=True),
)

# dcp gives each save a random number, and stores the times of its writes.
OF_DCP = (".metadata",)

FILES = (
    Scenario("small_saves.py", variant=True),
    Scenario("every_file_is_mine.py", again=True, variant=True),
    Scenario("diverged.py", again=True, variant=True),
    Scenario("other_writers.py", again=True, variant=True),
    Scenario("own_notes.py", again=True, volatile=OF_DCP, variant=True),
    Scenario("dcp_read_elsewhere.py", ranks=2, volatile=OF_DCP, variant=True),
    Scenario("folders.py", variant=True),
    Scenario("writers.py", variant=True),
    Scenario("numbered.py", ranks=2, saves=True, variant=True),
    Scenario("saved_by_dcp.py", ranks=2, volatile=OF_DCP, saves=True, variant=True),
    Scenario("saved_one_file.py", saves=True, variant=True),
    Scenario("saved_safetensors.py", saves=True, variant=True),
    Scenario("saved_by_pickle.py", saves=True, variant=True),
)

# Third-party modules.
ACCELERATE = "accelerate.test_utils.scripts."


def _module(name: str, *, variant: bool = False) -> Scenario:
    on_cpus, short = {"ACCELERATE_USE_CPU": "true"}, name.rpartition(".")[2]
    return Scenario(name, ranks=2, flags=("-m",), environment=on_cpus, named=short, variant=variant)


FOREIGN = (
    _module(ACCELERATE + "test_sync", variant=True),
    _module(ACCELERATE + "test_ops"),
    _module(ACCELERATE + "test_script", variant=True),
)

SCENARIOS = (*ENDS, *SURROUNDINGS, *TRAINING, *FILES, *FOREIGN)


def parameters(scenarios: Iterable[Scenario]) -> list[Any]:
    """The scenarios as parameters of a test, with their names and marks."""
    return [pytest.param(each, id=each.name, marks=[pytest.mark.variant] * each.variant) for each in scenarios]
