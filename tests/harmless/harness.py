"""Runs a script under each launcher, each time in a sandbox with the same names, and describes the differences between the two."""

import difflib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.slurm.machine import leashed
from tests.support.gloo import ABORTED, TRIES

SCRIPTS = Path(__file__).parent / "scripts"
INSIDE = Path(__file__).parent / "inside.py"
BIN = Path(sys.executable).parent
# Each sandbox has separate folders here: the working folder `work`, and those of HOME, TMPDIR and HEADWAY_RUNS.
HERE = Path(tempfile.gettempdir()) / "headway-harmless"
FOLDERS = ("work", "home", "tmp", "runs")
TORCHRUN, HEADWAY = (str(BIN / "torchrun"),), (str(BIN / "headway"), "torchrun")
LIMIT_S = 270.0
# Processes that a script leaves behind may continue this long.
SETTLE_S = 10.0
# Bytes of a text whose differences are shown line by line.
SHORT = 50_000
# headway may end this much later: on a loaded machine its own processes start slowly.
LATER_S = 45.0


@dataclass(frozen=True)
class Scenario:
    """A script and its arguments. `volatile`: files whose bytes differ between two runs of torchrun, too."""

    script: str
    ranks: int = 1
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    fails: bool = False
    volatile: tuple[str, ...] = ()
    # A second start of the same command in the same folder is observed too.
    again: bool = False
    # It resumes from its saves: killed and restarted, it ends with the same result as without a kill.
    saves: bool = False
    # Its path is given relative to the working folder.
    relative: bool = False
    # Modules in the working folder, each of which ends any process that imports it.
    present: tuple[str, ...] = ()
    # One rank, whose own children print too.
    several: bool = False
    # Its name, if the script's name does not identify it.
    named: str = ""
    # Another case of a property that the rest of the corpus covers: only `make soak` runs it.
    variant: bool = False

    @property
    def torn(self) -> bool:
        """Whether several processes print words separately without a buffer, so that concurrent lines are torn."""
        return self.ranks > 1 or self.several

    @property
    def name(self) -> str:
        return self.named or self.script.removesuffix(".py")

    def command(self, launcher: Sequence[str], more: Sequence[str] = ()) -> list[str]:
        path = SCRIPTS / self.script
        script = os.path.relpath(path, HERE / "work") if self.relative else str(path) if path.is_file() else self.script
        return [*launcher, "--nproc-per-node", str(self.ranks), *more, *self.flags, script, *self.words]


@dataclass(frozen=True)
class File:
    """The attributes that `find` shows of one entry, and its contents. `content`: a short text, a longer one's hash, or a link's target."""

    mode: str
    content: str


NO_FILE = File("is not there", "")


@dataclass(frozen=True)
class Observation:
    """The externally visible results of a run, once it and its leftover processes have ended."""

    code: int | None
    out: tuple[str, ...]
    err: tuple[str, ...]
    files: Mapping[str, File]
    left: tuple[str, ...]
    memory: tuple[str, ...]
    took_s: float
    torn: bool


# --- running ------------------------------------------------------------------------------------------------------------


def why_not() -> str:
    """Why this machine cannot hold a sandbox; empty if it can."""
    tried = subprocess.run([*_unshare(), "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    return f"namespaces: {tried.stderr.strip() or tried.returncode}" if tried.returncode else ""


def _unshare() -> list[str]:
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *own, "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Sandbox:
    """A folder in which one launcher runs scripts, which see it as HERE."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
        HERE.mkdir(exist_ok=True)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", kill: Mapping[str, int] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command, which `seen` waits for. `kill`: which rank is killed at which mark (see inside.py)."""
        (self.folder / "stdin").write_bytes(stdin)
        task = {
            "here": str(HERE),
            "folder": str(self.folder),
            "command": list(command),
            "stdin": "stdin",
            "limit_s": LIMIT_S,
            "settle_s": SETTLE_S,
            "kill": kill,
        }
        return subprocess.Popen(
            leashed([*_unshare(), sys.executable, "-S", str(INSIDE), json.dumps(task)]),
            env={**_known(), **environment},
            stdin=subprocess.DEVNULL,
        )

    def seen(self, process: "subprocess.Popen[bytes]") -> "Raw":
        assert process.wait(LIMIT_S + SETTLE_S + 30.0) == 0, "the sandbox itself failed"
        left = json.loads((self.folder / "left.json").read_text())
        out, err = ((self.folder / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr"))
        files = _files(self.folder, FOLDERS[:-1])
        return Raw(
            left["code"],
            out,
            err,
            files,
            tuple(left["left"]),
            tuple(left["memory"]),
            left["took_s"],
            left["killed"],
            left["marks"],
        )


@dataclass(frozen=True)
class Raw:
    """The result before the launcher's own parts are removed."""

    code: int | None
    out: str
    err: str
    files: Mapping[str, File]
    left: tuple[str, ...]
    memory: tuple[str, ...]
    took_s: float
    # Whether the requested kill took place, and how far the script progressed; see inside.py.
    killed: bool
    marks: int


def _known() -> dict[str, str]:
    """The environment of both launchers: this one's without variables that would misdirect them."""
    # pytest's own variables name the test, and change while it runs.
    strange = ("HEADWAY_", "PET_", "TORCHELASTIC_", "PYTEST_", "WANDB_", "SLURM_", "OMP_", "COV_", "XDG_")
    known = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    own = {"HOME": str(HERE / "home"), "TMPDIR": str(HERE / "tmp"), "HEADWAY_RUNS": str(HERE / "runs")}
    return {**known, **own, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def _files(folder: Path, names: Sequence[str]) -> dict[str, File]:
    found: dict[str, File] = {}
    for path in sorted(path for name in names for path in (folder / name).rglob("*")):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            content = _content(path.read_bytes())
        else:
            content = str(path.readlink()) if path.is_symlink() else ""
        name = DRAWN.sub(r"\1...", str(path.relative_to(folder)))
        same = sum(known.partition(", number ")[0] == name for known in found)
        found[f"{name}, number {same + 1}" if same else name] = File(stat.filemode(status.st_mode), content)
    return found


def _content(written: bytes) -> str:
    try:
        return WHEN.sub("at some time", written.decode()) if len(written) < SHORT else _hash(written)
    except UnicodeDecodeError:
        return _hash(written)


def _hash(written: bytes) -> str:
    return f"{len(written)} bytes, {hashlib.sha256(written).hexdigest()[:16]}"


def both(scenario: Scenario, folder: Path) -> tuple[list[Observation], list[Observation]]:
    """The results of each launcher's starts: one, or two if the scenario is started again. The launchers run in parallel."""
    sandboxes = (Sandbox(folder / "torchrun"), Sandbox(folder / "headway"))
    observed: tuple[list[Observation], list[Observation]] = ([], [])
    # By default a failure ends torchrun's run; headway's restarts are documented.
    more = ("--max-restarts", "0") if scenario.fails else ()
    for sandbox in sandboxes:
        _prepare(sandbox, scenario)
    for _ in range(2 if scenario.again else 1):
        running = [
            sandbox.start(scenario.command(launcher, more), scenario.environment, scenario.stdin)
            for sandbox, launcher in zip(sandboxes, (TORCHRUN, HEADWAY), strict=True)
        ]
        for sandbox, process, observations, clean in zip(sandboxes, running, observed, (of_torchrun, of_headway), strict=True):
            observations.append(clean(sandbox.seen(process), scenario))
    shutil.rmtree(folder)
    return observed


def alone(scenario: Scenario, folder: Path, launcher: Sequence[str], kill: Mapping[str, int] | None = None) -> Raw:
    """The result of one launcher's run, with or without a kill; torchrun gets as many restarts as headway has by default."""
    more = ("--max-restarts", "3") if launcher == TORCHRUN else ()
    for _ in range(TRIES):
        sandbox = Sandbox(folder)
        _prepare(sandbox, scenario)
        seen = sandbox.seen(sandbox.start(scenario.command(launcher, more), scenario.environment, scenario.stdin, kill))
        shutil.rmtree(folder)
        if launcher != TORCHRUN or ABORTED not in seen.err:
            break
    return seen


def _prepare(sandbox: Sandbox, scenario: Scenario) -> None:
    for name in scenario.present:
        text = "raise SystemExit(f'{__name__} of the working folder was imported')\n"
        (sandbox.folder / "work" / f"{name}.py").write_text(text)


def compare(scenario: Scenario, folder: Path) -> None:
    """Raise AssertionError with every difference between the two launchers' runs of a scenario."""
    observed = both(scenario, folder)
    for _ in range(TRIES - 1):
        # gloo's threads occasionally abort an exiting process, under torchrun as well, which then fails.
        if not any(ABORTED in line for runs in observed for run in runs for line in run.err):
            break
        observed = both(scenario, folder)
    for torchrun, headway in zip(*observed, strict=True):
        assert torchrun.code == int(scenario.fails), torchrun.err[-20:]
        assert not (found := differences(torchrun, headway)), "\n".join(found)


# --- the launchers' own output ----------------------------------------------------------------------------------------------

# [W1123 02:57:19.058000 6082 ...] and torch's C++ lines: [W1123 02:57:19.058000000 ProcessGroupGloo.cpp:...]
PROFILER = re.compile(r"USDT:\S+ \S+ \d+:\d+")
STAMP = re.compile(r"\[?([VWEIF])\d{4} \d\d:\d\d:\d\d\.\d+ (\d+ )?")
AGENT = re.compile(r"[VWEIF]\d{4} \S+ \d+ (site-packages/)?torch/distributed/(run|launcher/\w+|elastic/\S+)\.py:\d+\]")
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
# Names that Python, torch and both launchers generate at random.
DRAWN = re.compile(r"(pymp-|listener-|torch-shm-dir-|logs/)[\w-]{6,}")
# In the error file of torch's `record`.
WHEN = re.compile(r'"timestamp": "\d{10}"')
# The table of a failed run: the launcher's own traceback and everything after it.
TABLE = re.compile(r"^Traceback \(most recent call last\):\n  File \"[^\"]*bin/torchrun\"[\s\S]*", re.MULTILINE)

# docs/resilience.md, "What headway prints": the last line of every run; here of one without failures.
SAID = re.compile(r"headway: nothing lost: no failure \(ETTR [\d.]+\); `headway report \S+` shows more\n?")
# From torchrun, also when a script starts it.
LOGS = re.compile(r"tmp/torchelastic_")
# docs/script.md, "What a script can notice": torch._dynamo is imported before the script, and creates this folder.
IMPORTED = re.compile(r"tmp/torchinductor_\w+")
# docs/script.md, "Variables": the location of runs without HEADWAY_RUNS.
STATE = re.compile(r"home/\.local(/state(/headway(/.*)?)?)?")
# After a failure: the event, and the consequence.
SAID_OF_A_FAILURE = re.compile(r"^headway: .*\n?", re.MULTILINE)


def of_torchrun(raw: Raw, scenario: Scenario) -> Observation:
    """The result of torchrun's run, without the lines of torch's agent."""
    err = [line for line in TABLE.sub("", raw.err).splitlines() if not AGENT.match(line)]
    return _observation(raw, scenario, err, raw.files)


def of_headway(raw: Raw, scenario: Scenario) -> Observation:
    """The result of headway's run, without its documented output and files."""
    ours = SAID_OF_A_FAILURE if scenario.fails else SAID
    files = {name: file for name, file in raw.files.items() if not STATE.fullmatch(name)}
    return _observation(raw, scenario, ours.sub("", raw.err).splitlines(), files)


def _observation(raw: Raw, scenario: Scenario, err: list[str], files: Mapping[str, File]) -> Observation:
    shown = {
        name: File(file.mode, "volatile") if _matches(name, scenario.volatile) else file
        for name, file in files.items()
        if not LOGS.match(name) and not IMPORTED.fullmatch(name)
    }
    # Exit codes differ as documented: torchrun's 1 is one of headway's.
    code = raw.code if raw.code in (0, None) else 1
    return Observation(
        code,
        _lines(raw.out.splitlines(), scenario),
        _lines(err, scenario),
        shown,
        raw.left,
        raw.memory,
        raw.took_s,
        torn=scenario.torn,
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


def _lines(lines: list[str], scenario: Scenario) -> tuple[str, ...]:
    """Lines of one rank stay in order; lines of several may interleave."""
    normal = [PROFILER.sub("USDT", ADDRESS.sub("0x", STAMP.sub(r"[\1 ", line))) for line in lines]
    return tuple(sorted(normal) if scenario.torn else normal)


def differences(torchrun: Observation, headway: Observation) -> list[str]:
    """Every difference of the second from the first, in words; empty if there is none."""
    found = []
    if torchrun.code != headway.code:
        found.append(f"exit code: torchrun {torchrun.code}, headway {headway.code}")
    for what in ("out", "err", "left", "memory"):
        there, here = getattr(torchrun, what), getattr(headway, what)
        same_letters = torchrun.torn and what in ("out", "err") and sorted("".join(there)) == sorted("".join(here))
        found += [] if same_letters else _unlike(what, there, here)
    for name in sorted({*torchrun.files, *headway.files}):
        one, other = torchrun.files.get(name, NO_FILE), headway.files.get(name, NO_FILE)
        found += _unlike(name, [one.mode, *one.content.splitlines()], [other.mode, *other.content.splitlines()])
    if headway.took_s > torchrun.took_s + LATER_S:
        found.append(f"headway took {headway.took_s:.0f} s, torchrun {torchrun.took_s:.0f} s")
    return found


def _unlike(what: str, torchrun: Sequence[str], headway: Sequence[str]) -> list[str]:
    return [line.rstrip() for line in difflib.unified_diff(torchrun, headway, f"{what}, torchrun", f"{what}, headway", n=0)]
