"""Tests which run a command belongs to: the decision, the facts it uses, and that two concurrent launchers never share a run."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.runner.alive import Process
from headway.runner.contract import Exit, RunConfig, RunDirectory, Verdict, from_json, to_json
from headway.runner.goodput.tracking import tracker_environment
from headway.runner.launches import Launch, LaunchCommand
from headway.runner.rundir import open_run
from headway.runner.torchrun import launcher, naming
from headway.runner.torchrun.arguments import UsageError, parse
from headway.runner.torchrun.command import command_of, module_file
from headway.runner.torchrun.configure import configure, insisted_name
from headway.runner.torchrun.naming import Candidate, Life, RunChoice, choose, choose_named, life_of, look_at, runs_of

SCRIPT = str(Path(__file__).parents[3] / "examples/one-word/train.py")
HERE, ELSEWHERE = "node0:29400", "node9:29400"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HEADWAY_", "PET_"))]:
        monkeypatch.delenv(name)


# --- the decision -------------------------------------------------------------------------------------------------------


def seen(name: str, life: Life, differs: str | None = None, attempt: int = 0, *, lets_in: bool = False) -> Candidate:
    return Candidate(name, attempt, differs, life, lets_in, "node3")


LIVES, ENDED, COMPLETED, UNKNOWN = Life.LIVES, Life.ENDED, Life.COMPLETED, Life.UNKNOWN


@pytest.mark.parametrize(
    ("candidates", "expected", "attempt", "why"),
    [
        ([], "777", 0, None),
        ([seen("777", ENDED)], "777", 1, "resumes as attempt 1: it is the same command, and attempt 0 did not complete"),
        ([seen("777", ENDED, attempt=4)], "777", 5, "resumes as attempt 5"),
        ([seen("777", COMPLETED)], "777-2", 0, "`777` is the same command and has completed"),
        ([seen("777", LIVES)], "777-2", 0, "`777` is the same command and is still running"),
        (
            [seen("777", UNKNOWN)],
            "777-2",
            0,
            "whether it has ended on node3 cannot be seen from here; set HEADWAY_RUN=777 to resume it",
        ),
        ([seen("777", UNKNOWN, "command")], "777-2", 0, "`777` belongs to another command"),
        (
            [seen("777", UNKNOWN, "code")],
            "777-2",
            0,
            "train.py differs from the code that `777` ran; set HEADWAY_RUN=777 to resume it",
        ),
        ([seen("777", UNKNOWN, "variable LR")], "777-2", 0, "variable LR differs from `777`; set HEADWAY_RUN=777"),
        ([seen("777", UNKNOWN, "command", attempt=-1)], "777-2", 0, "`777` belongs to another command"),
        ([seen("777", UNKNOWN, "command"), seen("777-2", ENDED)], "777-2", 1, "`777-2` resumes as attempt 1"),
        ([seen("777", COMPLETED), seen("777-2", ENDED), seen("777-3", ENDED)], "777-2", 1, "resumes as attempt 1"),
        ([seen("777", LIVES), seen("777-2", ENDED)], "777-2", 1, "resumes as attempt 1"),
        ([seen("777", COMPLETED), seen("777-9", UNKNOWN, "code")], "777-10", 0, "`777` is the same command and has completed"),
        ([seen("777-2", UNKNOWN, "command")], "777-3", 0, "`777-2` belongs to another command"),
        ([seen("777", UNKNOWN, lets_in=True)], "777-2", 0, "whether it has ended on node3"),
        ([seen("777", ENDED, "code", lets_in=True)], "777-2", 0, "train.py differs from the code that `777` ran"),
    ],
)
def test_a_run_belongs_to_one_command(candidates: list[Candidate], expected: str, attempt: int, why: str | None) -> None:
    chosen = choose("777", candidates, "train.py")
    assert (chosen.name, chosen.attempt, chosen.enters) == (expected, attempt, False)
    assert chosen.new == (expected not in [each.name for each in candidates])
    if why is None:
        assert chosen.line is None, "a plain first run prints nothing"
    else:
        assert chosen.line is not None
        assert chosen.line.startswith(f"run `{expected}`")
        assert why in chosen.line
        assert "\n" not in chosen.line


@pytest.mark.parametrize("differs", [None, "code", "variable LR", "command"])
def test_a_node_with_the_running_runs_endpoint_joins_it(differs: str | None) -> None:
    candidates = [seen("777", ENDED), seen("777-2", LIVES), seen("777-3", LIVES, differs, attempt=2, lets_in=True)]
    assert choose("777", candidates, "train.py") == RunChoice("777-3", 2, enters=True)


@pytest.mark.parametrize("life", [ENDED, COMPLETED, UNKNOWN])
@pytest.mark.parametrize("differs", [None, "code", "command", "variable LR"])
def test_a_named_run_resumes_whatever_has_changed(life: Life, differs: str | None) -> None:
    assert choose_named(seen("exp", life, differs, attempt=3), "exp") == RunChoice("exp", 4)


def test_a_named_run_is_refused_while_it_is_running() -> None:
    with pytest.raises(
        UsageError, match=r"HEADWAY_RUN=exp: attempt 3 of this run is still running \(launched on node3\); stop it first"
    ):
        choose_named(seen("exp", LIVES, attempt=3), "exp")
    assert choose_named(seen("exp", LIVES, "code", attempt=3, lets_in=True), "exp").enters
    assert choose_named(None, "exp") == RunChoice("exp", new=True)


@dataclass
class Past:
    """A run's true state: the commands of its attempts, and the state of the newest."""

    commands: list[int]
    life: Life
    meets: str | None
    # The state of the previous attempt when each was started.
    begun: list[Life] = field(default_factory=list)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_run_only_has_one_commands_consecutive_attempts(data: st.DataObject) -> None:
    """Whatever is launched, ends or is invisible: a run has one command's attempts, each started after the previous one had ended
    without completing."""
    store: dict[str, Past] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        living, ends = sorted(name for name, past in store.items() if past.life is LIVES), bool(data.draw(st.booleans()))
        if living and ends:
            store[data.draw(st.sampled_from(living))].life = data.draw(st.sampled_from([ENDED, COMPLETED]))
            continue
        command, meets = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([None, HERE, ELSEWHERE]))
        candidates = []
        for name, past in store.items():
            can_be_seen = past.life is COMPLETED or data.draw(st.booleans())
            differs = None if past.commands[-1] == command else "command"
            life = past.life if can_be_seen else UNKNOWN
            lets_in = differs is None and meets is not None and past.meets == meets
            candidates.append(Candidate(name, len(past.commands) - 1, differs, life, lets_in))
        chosen = choose("job", candidates, "train.py")
        if chosen.enters:
            entered = store[chosen.name]
            assert (entered.commands[-1], entered.life, entered.meets) == (command, LIVES, meets)
            continue
        assert chosen.new == (chosen.name not in store)
        past = store.setdefault(chosen.name, Past([], ENDED, meets))
        assert chosen.attempt == len(past.commands)
        past.begun.append(past.life)
        past.commands.append(command)
        past.life, past.meets = LIVES, meets
    for past in store.values():
        assert len(set(past.commands)) == 1
        assert set(past.begun) == {ENDED}


# --- the identity of a command ------------------------------------------------------------------------------------------


def command(*words: str, environment: dict[str, str] | None = None, alone: bool = True, procs: int = 1) -> LaunchCommand:
    return command_of(parse(words), procs, environment or {}, alone=alone)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os\nlr = os.environ.get('LR')  # HOME, SLURM_JOB_ID, HF_TOKEN\n")
    return "train.py"


def test_a_repeated_command_is_the_same_command(script: str) -> None:
    later = {"SLURM_JOB_ID": "9", "HF_TOKEN": "other", "EDITOR": "vi", "SLURM_RESTART_COUNT": "1"}
    now = command(script, "--lr", "1", environment={"HOME": "/h", "HF_TOKEN": "some", "SLURM_JOB_ID": "8"})
    again = command(script, "--lr", "1", environment={"HOME": "/h", **later})
    assert now.differs(again) is None
    assert from_json(Launch, to_json(Launch.own(now, HERE, {}))).command == now, "as it is written down"


def test_a_change_of_words_processes_or_variables_is_another_command(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = command(script, "--lr", "1")
    assert command(script, "--lr", "2").differs(before) == "command"
    assert command(str(tmp_path / script), "--lr", "1").differs(before) == "command"
    assert command(script, "--lr", "1", procs=2).differs(before) == "command"
    assert command("-m", "train", "--lr", "1").differs(before) == "command"
    assert command(script, "--lr", "1", environment={"LR": "1"}).differs(before) == "variable LR"
    assert command(script, "--lr", "1", environment={"SLURM_ARRAY_TASK_ID": "1"}).differs(before) == "command"
    assert command(script, "--lr", "1", environment={"SLURM_PROCID": "1"}).differs(before) == "command", "of one srun's tasks"
    assert command(script, "--lr", "1", environment={"SLURM_PROCID": "1"}, alone=False).differs(before) is None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/train.py").write_bytes((tmp_path / script).read_bytes())
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command(script, "--lr", "1").differs(before) == "command", "relative paths lead elsewhere"
    monkeypatch.chdir(tmp_path)
    (tmp_path / script).write_text("lr = 3")
    assert command(script, "--lr", "1").differs(before) == "code"


def test_a_variable_named_in_a_programs_arguments_counts() -> None:
    words = ("--no-python", "bash", "-c", "train --lr $LR")
    assert command(*words, environment={"LR": "1"}).differs(command(*words, environment={"LR": "2"})) == "variable LR"
    assert "0.25" not in to_json(command(*words, environment={"LR": "0.25"})), "the value is private"


def test_a_modules_file_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "a_package/inner"
    (inner / "whole").mkdir(parents=True)
    for path in (inner.parent, inner, inner / "whole"):
        (path / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (inner / "train.py").write_text("a = 1\n")
    (inner / "whole/__main__.py").write_text("b = 1\n")
    assert module_file("a_package.inner.train") == inner / "train.py"
    assert module_file("a_package.inner.whole") == inner / "whole/__main__.py"
    assert [module_file(name) for name in ("no_such_package", "a_package.none.x", "a_package.inner")] == [None] * 3
    before = command("-m", "a_package.inner.train")
    assert before.code is not None
    (inner / "train.py").write_text("a = 2\n")
    assert command("-m", "a_package.inner.train").differs(before) == "code"


def test_a_named_run_must_have_a_valid_run_name() -> None:
    assert insisted_name({}) == ""
    assert insisted_name({"HEADWAY_RUN": "exp-1"}) == "exp-1"
    with pytest.raises(UsageError, match=r"HEADWAY_RUN=\.\./x: expected a run's name"):
        insisted_name({"HEADWAY_RUN": "../x"})


# --- the state of an attempt --------------------------------------------------------------------------------------------


@contextmanager
def process() -> Iterator[tuple["subprocess.Popen[bytes]", Process]]:
    """A process of this run, as it records itself."""
    code = "import sys; from headway.runner.alive import *; from headway.runner.contract import to_json; "
    code += "print(to_json(Process.own()), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as begun:
        assert begun.stdout is not None
        yield begun, from_json(Process, begun.stdout.readline().decode())


def test_a_process_is_alive_until_it_has_ended() -> None:
    with process() as (begun, written):
        assert written.lives() is True
        assert replace(written, started=written.started - 1).lives() is False, "its number is another one's now"
        assert replace(written, boot="other", host="other").lives() is None, "another machine"
        assert replace(written, pids="pid:[1]").lives() is None, "a container that cannot be seen into"
        begun.kill()
        os.waitid(os.P_PID, begun.pid, os.WEXITED | os.WNOWAIT)
        assert written.lives() is False, "although it has not been reaped"
    assert written.lives() is False


def test_processes_from_before_a_reboot_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(Process.own(), machine="m", boot="now")
    monkeypatch.setattr(Process, "own", classmethod(lambda _: here))
    assert replace(here, boot="before").lives() is False
    assert replace(here, boot="before", host="other").lives() is None
    assert replace(here, boot="").lives() is None


def launched(tmp_path: Path, name: str = "job", meets: str | None = None, **facts: Any) -> tuple[RunDirectory, Launch]:
    arguments = parse([SCRIPT])
    launch = replace(Launch.own(command_of(arguments, 1, {}, alone=meets is None), meets, {}), **facts)
    return open_run(tmp_path, name, configure(arguments), 0, launch=to_json(launch).encode()), launch


def give_verdict(directory: RunDirectory, code: Exit) -> None:
    verdict = Verdict(directory.root.name, directory.attempt, 1, "said", "why", int(code))
    directory.verdict.write_text(to_json(verdict))


def never(*_: object) -> bool | None:
    raise AssertionError("nobody needs to be asked")


GONE = replace(Process.own(), started=1)
AFAR = replace(Process.own(), host="afar", boot="another machine's")


@pytest.mark.parametrize(
    ("code", "life"),
    [
        (Exit.COMPLETED, COMPLETED),
        *((code, ENDED) for code in (Exit.PREEMPTED, Exit.STOP, Exit.RETRY_ELSEWHERE, Exit.RETRY_HERE, Exit.SUPERSEDED)),
    ],
)
def test_a_verdict_shows_an_attempts_state(code: Exit, life: Life, tmp_path: Path) -> None:
    directory, launch = launched(tmp_path)
    give_verdict(directory, code)
    assert life_of(directory, launch, {}, never) is life


def test_without_a_verdict_its_processes_show_an_attempts_state(tmp_path: Path) -> None:
    directory, launch = launched(tmp_path)
    assert life_of(directory, launch, {}, never) is LIVES
    assert life_of(directory, replace(launch, process=GONE), {}, never) is ENDED
    directory.node(1).write_text(json.dumps({"process": vars(Process.own())}))
    assert life_of(directory, replace(launch, process=GONE), {}, never) is LIVES, "another node of it does"
    directory.node(1).write_text(json.dumps({"process": vars(AFAR)}))
    for answer, life in ((True, LIVES), (False, ENDED), (None, UNKNOWN)):
        assert life_of(directory, replace(launch, process=GONE), {}, lambda *_, answer=answer: answer) is life


def test_a_run_that_completes_while_it_is_examined_has_completed(tmp_path: Path) -> None:
    directory, launch = launched(tmp_path, process=AFAR)

    def ends(*_: object) -> bool:
        give_verdict(directory, Exit.COMPLETED)
        return False

    assert life_of(directory, launch, {}, ends) is COMPLETED


def test_a_requeued_jobs_attempt_has_ended_on_every_host(tmp_path: Path) -> None:
    directory, launch = launched(tmp_path, process=AFAR, job="7", requeues=1)
    again = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}
    assert life_of(directory, launch, again, never) is ENDED
    for same in ({**again, "SLURM_RESTART_COUNT": "1"}, {**again, "SLURM_JOB_ID": "8"}, {}):
        assert life_of(directory, launch, same, lambda *_: None) is UNKNOWN


def test_an_unreachable_coordinator_proves_nothing(tmp_path: Path) -> None:
    directory, launch = launched(tmp_path, process=AFAR)
    assert naming.coordinator_answers(directory, launch) is None, "it is published nowhere"
    directory.coordinator.write_text(json.dumps({"host": "127.0.0.1", "port": 1}))
    assert naming.coordinator_answers(directory, launch) is None, "that is another machine's loopback"


def test_a_closed_port_shows_that_the_attempt_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, launch = launched(tmp_path)
    directory.coordinator.write_text(json.dumps({"host": "127.0.0.1", "port": 1}))
    monkeypatch.setattr(naming, "SILENT_S", 0.0)
    assert naming.coordinator_answers(directory, launch) is False


# --- run folders --------------------------------------------------------------------------------------------------------


def test_runs_with_one_name_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("job-10", "job", "job-2", "job-02", "job-1", "jobs", "job-2-3", "job-x"):
        (tmp_path / name).mkdir()
    assert runs_of(tmp_path, "job") == ["job", "job-2", "job-10"]
    assert runs_of(tmp_path / "none", "job") == []


def test_a_folder_of_another_user_is_not_entered(tmp_path: Path) -> None:
    _, launch = launched(tmp_path)
    for name in ("empty", "builtin"):
        (tmp_path / name).mkdir()
    open_run(tmp_path, "builtin", RunConfig(1, 1, configure(parse([SCRIPT])).mesh, configure(parse([SCRIPT])).trainer, ""), 0)
    for name, attempt in (("empty", -1), ("builtin", 0)):
        assert look_at(tmp_path / name, launch, {}) == Candidate(name, attempt, "command", UNKNOWN)


def test_a_run_admits_nodes_with_its_endpoint_script_and_arguments(tmp_path: Path) -> None:
    directory, launch = launched(tmp_path, meets=HERE)
    edited = replace(launch, command=replace(launch.command, code="other", folder="/elsewhere", variables={"LR": "1"}))
    assert look_at(directory.root, edited, {}) == Candidate("job", 0, "command", LIVES, True, launch.process.host)
    others = [replace(launch, meets=ELSEWHERE), replace(launch, command=replace(launch.command, words=(SCRIPT, "--lr")))]
    assert [look_at(directory.root, other, {}).lets_in for other in others] == [False, False]
    alone = replace(launch, meets=None)
    open_run(tmp_path, "alone", configure(parse([SCRIPT])), 0, launch=to_json(alone).encode())
    assert not look_at(tmp_path / "alone", alone, {}).lets_in, "there is nothing to enter in a run of one node"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def open_at_once(count: int, *words: str) -> list[tuple[str, int]]:
    """The runs of several launchers of one command at the same moment."""
    arguments = parse([*words, SCRIPT])
    config = configure(arguments)
    with ThreadPoolExecutor(count) as pool:
        places = list(pool.map(lambda _: launcher.open_alone(arguments, config), range(count)))
    return [(place.directory.root.name, place.directory.attempt) for place in places]


@pytest.mark.usefixtures("runs")
def test_concurrent_launchers_get_separate_runs(capsys: pytest.CaptureFixture[str]) -> None:
    stem = Path(SCRIPT).stem
    assert sorted(open_at_once(8)) == [(f"{stem}-{number}", 0) for number in range(1, 9)]
    assert capsys.readouterr().err == ""
    assert sorted(open_at_once(8, "--rdzv-id", "100")) == [("100", 0), *((f"100-{number}", 0) for number in range(2, 9))]
    assert capsys.readouterr().err.count("headway torchrun: run `100-") == 7


def test_only_one_of_several_launchers_resumes_the_ended_run(runs: Path) -> None:
    assert open_at_once(1, "--rdzv-id", "100") == [("100", 0)]
    give_verdict(RunDirectory(runs / "100", 0), Exit.PREEMPTED)
    assert sorted(open_at_once(6, "--rdzv-id", "100")) == [("100", 1), *((f"100-{number}", 0) for number in range(2, 7))]


@pytest.mark.usefixtures("runs")
def test_a_named_run_is_given_to_one_launcher_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RUN", "mine")
    assert open_at_once(1) == [("mine", 0)]
    with pytest.raises(UsageError, match="HEADWAY_RUN=mine: attempt 0 of this run is still running"):
        open_at_once(1)


def test_an_empty_attempt_is_resumed_only_by_name(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "100/attempts/0").mkdir(parents=True)
    assert open_at_once(1, "--rdzv-id", "100") == [("100-2", 0)]
    monkeypatch.setenv("HEADWAY_RUN", "100")
    assert open_at_once(1) == [("100", 1)]


def test_runs_of_two_commands_have_separate_tracker_ids() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ids = {tracker_environment(launched(Path(folder), name)[0], 0, {})["WANDB_RUN_ID"] for name in ("777", "777-2")}
    assert len(ids) == 2
