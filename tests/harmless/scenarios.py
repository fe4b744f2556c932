"""What is run under both launchers: our own scripts, and modules of installed packages as they are."""

from pathlib import Path

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


def _ends(way: str, *, fails: bool) -> Scenario:
    return Scenario("ends.py", words=(way,), fails=fails, named=f"ends by {way}")


ENDS = (
    *(_ends(way, fails=False) for way in WAYS),
    *(_ends(way, fails=True) for way in FAILING_WAYS if way != "exit 256"),
    # The code that the system sees is 0.
    _ends("exit 256", fails=False),
    Scenario("unflushed.py"),
    Scenario("excepthook.py", fails=True),
    Scenario("again_by_exec.py", ranks=2),
    Scenario("early_leavers.py", ranks=2, words=("1",), named="leaves behind a barrier"),
    Scenario("early_leavers.py", ranks=2, words=("at once",), named="leaves at once"),
    Scenario("background.py", words=("a background child",)),
    Scenario("waits.py"),
    Scenario("error_lines.py", fails=True),
    Scenario("recorded.py", fails=True),
    Scenario("one_rank_raises.py", ranks=2, words=("",), fails=True),
    Scenario("one_rank_raises.py", ranks=2, words=("early",), fails=True, named="one rank ends early"),
)

# Variables of Python that reach every process of a run, and what they ask for must not show in a script.
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

SURROUNDINGS = (
    Scenario("environment.py", ranks=2, words=("--lr", "3e-4", "", "a b")),
    Scenario("environment.py", environment=OF_PYTHON, named="environment with Python's variables"),
    # torchrun runs it in a child of multiprocessing, without its folder on the path of modules: docs/script.md.
    Scenario("training.py", environment={"PYTHONPATH": str(SCRIPTS)}, flags=("--run-path",), named="run path"),
    Scenario("python_state.py"),
    Scenario("descriptors.py"),
    Scenario("main_module.py"),
    Scenario("main_module.py", relative=True, named="script by a relative path"),
    Scenario("variables_first.py", ranks=2),
    Scenario("stdin.py", stdin=b"one\ntwo\nthree\nfour"),
    Scenario("children.py", stdin=b"for the child"),
    Scenario("handlers.py"),
    Scenario("output.py"),
    Scenario("profiled.py"),
    Scenario("pools.py"),
    Scenario("loaders.py"),
    Scenario("shared_memory.py", ranks=2),
    Scenario(
        "shadowed.py", present=("headway", "json", "secrets", "queue", "select", "numpy", "torch", "msgspec", "xxhash", "runner")
    ),
    Scenario(
        "program.sh",
        flags=("--no-python",),
        words=("a b",),
        stdin=b"piped\n",
        named="program",
    ),
    Scenario("package", flags=("-m",), words=("--flag",), environment={"PYTHONPATH": f"{ROOT}:{SCRIPTS}"}),
    # Of much output torchrun tears lines when it shows what goes to files.
    Scenario(
        "stdin.py", stdin=b"one\ntwo\nthree", flags=("--log-dir", "logs", "-r", "3", "-t", "0:1"), named="redirected output"
    ),
    Scenario("recorded.py", flags=("--log-dir", "logs", "-t", "3"), fails=True, named="teed output of a failure"),
    Scenario("spawns_ranks.py", several=True),
    Scenario("whole_folder.py", environment={"HEADWAY_RUNS": ""}),
)

TRAINING = (
    Scenario("training.py"),
    Scenario("compiled.py"),
    Scenario("groups.py", ranks=2),
    Scenario("collectives.py", ranks=2),
    Scenario("stores.py", ranks=2),
    Scenario("remote_calls.py", ranks=2),
    Scenario("data_parallel.py", ranks=2),
    Scenario("sharded.py", ranks=2),
)

# dcp names each save by a number of its own, and keeps the times of what it wrote.
OF_DCP = (".metadata",)

FILES = (
    Scenario("small_saves.py"),
    Scenario("every_file_is_mine.py", again=True),
    Scenario("diverged.py", again=True),
    Scenario("other_writers.py", again=True),
    Scenario("own_notes.py", again=True, volatile=OF_DCP),
    Scenario("dcp_read_elsewhere.py", ranks=2, volatile=OF_DCP),
    Scenario("folders.py"),
    Scenario("writers.py"),
    Scenario("numbered.py", ranks=2, saves=True),
    Scenario("saved_by_dcp.py", ranks=2, volatile=OF_DCP, saves=True),
    Scenario("saved_one_file.py", saves=True),
    Scenario("saved_safetensors.py", saves=True),
    Scenario("saved_by_pickle.py", saves=True),
)

# Nobody here wrote them.
ACCELERATE = "accelerate.test_utils.scripts."


def _module(name: str) -> Scenario:
    return Scenario(name, ranks=2, flags=("-m",), environment={"ACCELERATE_USE_CPU": "true"}, named=name.rpartition(".")[2])


FOREIGN = (_module(ACCELERATE + "test_sync"), _module(ACCELERATE + "test_ops"), _module(ACCELERATE + "test_script"))

SCENARIOS = (*ENDS, *SURROUNDINGS, *TRAINING, *FILES, *FOREIGN)
