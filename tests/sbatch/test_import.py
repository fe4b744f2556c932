"""`headway import sbatch` converts real-world scripts: the job and the notes are an interface, like messages."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.sbatch import NoteKind, Reading, read_script
from headway.sbatch.document import document
from headway.sbatch.environment import DECIDED
from headway.sbatch.launchers import ACCELERATE_VARIABLES
from headway.sbatch.options import directives

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
CASES = sorted(path.stem for path in SCRIPTS.glob("*.sbatch"))


def _imported(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """Import a script in a folder with the scripts that it runs; the job is job.yaml there."""
    for file in (SCRIPTS / f"{case}.sbatch", *SCRIPTS.glob("*.sh")):
        shutil.copy(file, tmp_path)
    cluster = (HERE / "cluster.yaml").read_text()
    if re.search("(apptainer|singularity) (exec|run)", (SCRIPTS / f"{case}.sbatch").read_text()):
        cluster = cluster.replace("containers: pyxis", "containers: apptainer, image_cache: /local/images")
    (tmp_path / "cluster.yaml").write_text(cluster)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_CLUSTER", raising=False)
    return main(["import", "sbatch", f"{case}.sbatch", "--cluster", "cluster.yaml", "-o", "job.yaml", *options])


def test_corpus_has_20_scripts_of_several_styles() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("case", CASES)
def test_job_and_notes_match_the_recorded_ones(
    case: str, update_golden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _imported(case, tmp_path, monkeypatch) == 0
    job, notes = (tmp_path / "job.yaml").read_text(), capsys.readouterr().err
    if update_golden:
        (SCRIPTS / f"{case}.yaml").write_text(job)
        (SCRIPTS / f"{case}.txt").write_text(notes)
    assert job == (SCRIPTS / f"{case}.yaml").read_text()
    assert notes == (SCRIPTS / f"{case}.txt").read_text()


@pytest.mark.parametrize("case", CASES)
def test_job_passes_the_check(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _imported(case, tmp_path, monkeypatch)
    capsys.readouterr()
    assert main(["check", "job.yaml"]) == 0
    assert "error[" not in capsys.readouterr().out


# Options whose values have another notation in a job.
_NUMBERS = {"nodes", "gres", "gpus", "gpus-per-node", "gpus-per-task", "ntasks", "time", "job-name", "array", "nice"}


@pytest.mark.parametrize("case", CASES)
def test_every_sbatch_option_is_in_the_job_or_in_a_note(case: str) -> None:
    source = (SCRIPTS / f"{case}.sbatch").read_text()
    reading = _read(case, source)
    job, noted = json.dumps(reading.job), {note.line for note in reading.notes}
    for number, line in enumerate(source.splitlines(), 1):
        for option in directives(line.removeprefix("#SBATCH"), number) or () if line.startswith("#SBATCH") else ():
            assert option.name in _NUMBERS or option.value.shown in job or number in noted, line


@pytest.mark.parametrize("case", CASES)
def test_lines_added_to_a_script_are_never_dropped(case: str) -> None:
    lines = (SCRIPTS / f"{case}.sbatch").read_text().splitlines()
    at = max(index for index, line in enumerate(lines) if line.startswith("#SBATCH")) + 1
    added = ["#SBATCH --licenses=matlab:2", "frobnicate --now", "export ZETA=1", "coproc { sleep 1; }"]
    reading = _read(case, "\n".join([*lines[:at], *added, *lines[at:]]))
    assert reading.job is not None
    assert "--licenses=matlab:2" in reading.job["scheduler"]["slurm"]["sbatch"]
    assert reading.job["environment"]["ZETA"] == "1"
    noted = [note.source for note in reading.notes if note.kind is NoteKind.UNREAD]
    assert "frobnicate --now" in noted
    assert any("coproc" in source for source in noted)


def _read(case: str, source: str) -> Reading:
    return read_script(
        source, "gpus", find_file=lambda name: (SCRIPTS / name).read_text() if name == "launch.sh" else None, name=case
    )


def _lines(source: str, **variables: str) -> dict[str, Any]:
    """Return the job of a script with these lines after `#SBATCH --nodes=2 --gpus-per-node=4`."""
    reading = read_script(f"#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\n{source}\n", "gpus", variables)
    assert reading.job is not None, reading.notes
    return dict(reading.job)


def _unread(source: str) -> list[str]:
    notes = read_script(f"#!/bin/bash\n#SBATCH --nodes=2\n{source}\n", "gpus").notes
    return [str(note) for note in notes if note.kind is NoteKind.UNREAD]


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("A='1 2'; torchrun t.py $A", ["1", "2"]),
        ("A='1 2'; torchrun t.py \"$A\"", ["1 2"]),
        ("A=(x 'y z'); torchrun t.py ${A[@]}", ["x", "y", "z"]),
        ("A=(x 'y z'); torchrun t.py \"${A[@]}\"", ["x", "y z"]),
        ("A=(x); A+=(y); torchrun t.py ${A[*]} ${#A[@]} ${A[1]}", ["x", "y", "2", "y"]),
        ("A=ab; A+=c; torchrun t.py ${A}d ${A%c} ${A/b/x} ${A^^}", ["abcd", "ab", "axc", "ABC"]),
        ("torchrun t.py ${X:-1} ${Y-'a b'}", ["1", "a", "b"]),
        ("X=; torchrun t.py a$X '' b", ["a", "", "b"]),
        ("X=; torchrun t.py $X", []),
        ("torchrun t.py $((2 * (3 + 4))) $((SLURM_NNODES)) $((SLURM_NNODES * 4))", ["14", "2", "{world_size}"]),
        ("torchrun t.py $SLURM_NNODES $SLURM_JOB_ID $PWD/x", ["{nodes}", "{run}", "x"]),
        ('P=/a/b.txt; torchrun t.py $(basename $P .txt) $(dirname "$P")', ["b", "/a"]),
        ('torchrun t.py --x=\'{a: 1}\' a\\ b "c\\"d"', ["--x={{a: 1}}", "a b", 'c"d']),
        ('if [ -n "$SLURM_JOB_ID" ]; then A=1; else A=2; fi; torchrun t.py $A', ["1"]),
        ("M=b; case $M in a) A=1;; b|c) A=2;; esac; torchrun t.py $A", ["2"]),
        ('f() { torchrun t.py $2 "$@"; }; f x y', ["y", "x", "y"]),
        ("[[ 3 -gt 2 && a == a ]] && A=1; torchrun t.py $A", ["1"]),
        ("X=a; L=b; P=$X/c/$L/d_$L.txt; torchrun t.py $P $X/$L/$L.x", ["a/c/b/d_b.txt", "a/b/b.x"]),
        ("C='torchrun t.py --a 1'; srun bash -c \"$C --b $SLURM_NNODES\"", ["--a", "1", "--b", "{nodes}"]),
    ],
)
def test_words_are_expanded_as_in_a_shell(shell: str, expected: list[str]) -> None:
    assert _lines(shell)["run"] == ["t.py", *expected]


@pytest.mark.parametrize(
    ("option", "time"),
    [("90", "1h30m"), ("10:30", "10m30s"), ("1:00:00", "1h"), ("2-12", "2d12h"), ("1-0:30", "1d30m"), ("1-02:03:04", "1d2h3m4s")],
)
def test_every_notation_of_a_time_limit_is_parsed(option: str, time: str) -> None:
    reading = read_script(f"#!/bin/sh\n#SBATCH -t {option}\ntorchrun t.py\n", "gpus")
    assert reading.job is not None
    assert reading.job["limits"] == {"attempt": {"time": time}}


@pytest.mark.parametrize(
    ("options", "nodes", "gpus"),
    [
        ("-N 4 --gpus=32", 4, 8),
        ("-n 8 --ntasks-per-node=4 --gpus-per-task=1", 2, 4),
        ("-N2 --gres=gpu:h100:4", 2, 4),
        ("--nodes 3 --gpus-per-node=a100:2", 3, 2),
        ("-N 2-4 -G 8", {"min": 2, "max": 4}, 4),
    ],
)
def test_nodes_and_gpus_are_parsed_from_every_notation(options: str, nodes: object, gpus: int) -> None:
    reading = read_script(f"#!/bin/sh\n#SBATCH {options}\ntorchrun t.py\n", "gpus")
    assert reading.job is not None
    assert (reading.job["nodes"], reading.job["gpus"]) == (nodes, gpus)


@pytest.mark.parametrize("component", ["hetjob", "packjob"])
def test_heterogeneous_job_keeps_its_first_component_and_lists_the_others(component: str) -> None:
    lines = f"#SBATCH --gpus-per-node=4\n#SBATCH {component}\n#SBATCH -N 8 --partition=cpu\ntorchrun t.py"
    reading = read_script(f"#!/bin/sh\n#SBATCH --nodes=2\n{lines}\n", "gpus")
    assert reading.job is not None
    assert (reading.job["nodes"], reading.job["gpus"], "scheduler" in reading.job) == (2, 4, False)
    why = "a heterogeneous job: only its first component is read"
    assert _unread(lines) == [
        f"line {line}: `{text}`: {why}" for line, text in ((4, component), (5, "-N 8"), (5, "--partition=cpu"))
    ]


def test_given_values_replace_those_of_the_environment() -> None:
    assert _lines("torchrun t.py --out $SCRATCH/x", SCRATCH="/s")["run"] == ["t.py", "--out", "/s/x"]
    assert _unread("torchrun t.py --out $SCRATCH/x") == [
        (
            "line 3: `$SCRATCH/x`: the script does not set `SCRATCH`: `--set SCRATCH=VALUE` gives its value, since arguments are not read "
            "by a shell"
        )
    ]


@pytest.mark.parametrize(
    ("shell", "setup"),
    [
        ("export A=$(date)", ['export A="$(date)"']),
        ("A=$(date); export B=$A/x", None),
        ("export A=$(date); export B=$A/x", ['export A="$(date)"', 'export B="${A}/x"']),
        ("F=conf; export B=$(cat $F)", None),
        ("D=$(pick); source $D/bin/activate", None),
        ("source $HOME/v/bin/activate", ['. "${HOME}/v/bin/activate"']),
    ],
)
def test_setup_has_no_variable_that_only_the_script_sets(shell: str, setup: list[str] | None) -> None:
    assert _lines(f"{shell}; torchrun t.py").get("setup") == setup
    assert bool(_unread(f"{shell}; torchrun t.py")) == (setup is None)


@pytest.mark.parametrize(
    ("line", "kind", "note"),
    [
        ("#SBATCH --array=0-3%2\ntorchrun t.py", NoteKind.UNREAD, "the runs of a sweep are submitted one by one"),
        ("#SBATCH --array=x\ntorchrun t.py", NoteKind.UNREAD, "not an array that a sweep can have"),
        ("#SBATCH foo\ntorchrun t.py", NoteKind.UNREAD, "`foo`: not an option"),
        ('#SBATCH --comment="a\ntorchrun t.py', NoteKind.UNREAD, "a quote is not closed"),
        ("#SBATCH --nodes=x\ntorchrun t.py", NoteKind.UNREAD, "not a number of nodes"),
        ("#SBATCH --nodes=3\ntorchrun t.py", NoteKind.OMITTED, "a later option of this name counts"),
        ("#SBATCH --nice=low\ntorchrun t.py", NoteKind.UNREAD, "`--nice=low`: not a number"),
        ("#SBATCH --qos=a=b\ntorchrun t.py", NoteKind.UNREAD, "not a value that `scheduler.slurm.qos` accepts"),
        ("#SBATCH --gpus-per-node=a:b:c\ntorchrun t.py", NoteKind.UNREAD, "`a:b:c` is not a number of GPUs"),
        ("#SBATCH --gpus-per-socket=2\ntorchrun t.py", NoteKind.UNREAD, "`gpus` of a job are those of a node"),
        ("torchrun t.py\n#SBATCH --time=1", NoteKind.OMITTED, "sbatch reads no options behind the first command"),
        ("srun --container-mounts=/a:/b torchrun t.py", NoteKind.UNREAD, "an option for a container, and no image"),
        ("srun --container-image=$IMG torchrun t.py", NoteKind.UNREAD, "`--set IMG=VALUE`"),
        ("srun --container-image='a b' torchrun t.py", NoteKind.UNREAD, "not a name of an image"),
        ("srun --container-image=i.sqsh --container-mounts=a:/b torchrun t.py", NoteKind.UNREAD, "a mount has an absolute path"),
        ("srun --container-image=i.sqsh --container-mounts=/a:/b:umask torchrun t.py", NoteKind.UNREAD, "it is mounted writable"),
        ("srun --container-image=i.sqsh --no-container-entrypoint torchrun t.py", NoteKind.UNREAD, "that a job does not have"),
        ("srun --het-group=1 torchrun t.py", NoteKind.UNREAD, "the job has one group of nodes"),
        ("srun --foo=$(x) torchrun t.py", NoteKind.UNREAD, "an option of srun whose value is known only in the job"),
        ("srun env -u A torchrun t.py", NoteKind.UNREAD, "`env -u A`: an option of `env`"),
        ("srun python -X dev t.py", NoteKind.UNREAD, "options of Python are not in a job"),
        ("srun bash -lc 'torchrun t.py'", NoteKind.CHECK, "a login shell reads the profile of the user"),
        ("srun bash -c 'torchrun t.py' a", NoteKind.UNREAD, "an argument of the shell behind the text of `-c`"),
        ("srun wrap --x torchrun t.py", NoteKind.UNREAD, "a program that runs the others"),
        ("mpirun -np 8 python t.py", NoteKind.REPLACED, "headway starts a runner on each node"),
        ("nsys profile torchrun t.py", NoteKind.UNREAD, "profiles the command"),
        ("numactl -N 0 torchrun t.py", NoteKind.OMITTED, "headway binds each rank to the processors of its GPU"),
        ("python -m torch.distributed.launch t.py", NoteKind.CHECK, "take LOCAL_RANK"),
        ("python -m deepspeed t.py", NoteKind.CHECK, "take LOCAL_RANK"),
        ("torchrun --foo=1 t.py", NoteKind.UNREAD, "an option of torchrun that a job does not have"),
        ("accelerate launch --foo=1 t.py", NoteKind.UNREAD, "an option of accelerate that a job does not have"),
        ("deepspeed --foo=1 t.py", NoteKind.UNREAD, "an option of deepspeed that a job does not have"),
        ("torchrun --nproc-per-node=$(x) t.py", NoteKind.UNREAD, "known only when the script runs"),
        ("torchrun --nproc-per-node=2 t.py", NoteKind.CHECK, "headway starts a rank for each GPU of the node group"),
        ("torchrun --nnodes=1 t.py", NoteKind.CHECK, "the job uses all of them"),
        ("export 1A=b\ntorchrun t.py", NoteKind.UNREAD, "not a name of a variable"),
        ("export A=$'x\\ny'\ntorchrun t.py", NoteKind.UNREAD, "a variable of a job has one line"),
        ("unset A\ntorchrun t.py", NoteKind.CHECK, "unset it there too"),
        ("export -n A\ntorchrun t.py", NoteKind.OMITTED, "ranks inherit the variables of the submission"),
        ("cd /x\ntorchrun t.py", NoteKind.UNREAD, "submit the job from `/x`"),
        ("scontrol requeue $SLURM_JOB_ID\ntorchrun t.py", NoteKind.REPLACED, "headway requeues the job"),
        ("f() { echo a; }\ntorchrun t.py", NoteKind.OMITTED, "nothing calls the function `f`"),
        ("torchrun t.py\nexit 0\nfrob", NoteKind.OMITTED, "it is behind the end of the script"),
        ("[ -d a ]\ntorchrun t.py", NoteKind.OMITTED, "a test without a consequence"),
        ("echo a | grep b\ntorchrun t.py", NoteKind.OMITTED, "it only prints"),
        ("for i in 1 2; do A=$(x); torchrun t.py; done", NoteKind.UNREAD, "the job has its first turn"),
    ],
)
def test_each_line_that_is_not_in_the_job_has_a_note(line: str, kind: NoteKind, note: str) -> None:
    reading = read_script(f"#!/bin/bash\n#SBATCH --nodes=2\n{line}\n", "gpus")
    assert reading.job is not None
    assert reading.job["run"] == ["t.py"]
    assert [str(each) for each in reading.notes if each.kind is kind and note in str(each)]


@pytest.mark.parametrize(
    "command",
    [
        "env A=b torchrun t.py",
        "if true; then env A=b torchrun t.py; fi",
        "env A=b torchrun t.py | tee log",
        "numactl -N 0 torchrun t.py 2>&1 | tee log",
    ],
)
def test_a_command_that_prints_may_start_the_training(command: str) -> None:
    assert _lines(command)["run"] == ["t.py"]


def test_no_secret_is_in_the_job_or_in_a_note() -> None:
    token = "hf_" + "abcdefghij" * 3
    exports = f"export HF_TOKEN={token}\nexport WANDB_API_KEY={'0a' * 20}\n"
    commands = f"torchrun t.py --hub_token {token} --token={token}\nwandb login {'0a' * 20}\n"
    reading = read_script(f"#!/bin/bash\n{exports}{commands}", "gpus")
    assert reading.job is not None
    assert reading.job["secrets"] == ["HF_TOKEN", "WANDB_API_KEY"]
    shown = document(reading.job, "x", reading.notes) + "".join(map(str, reading.notes))
    assert token not in shown
    assert "0a" * 20 not in shown


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torchrun --nnodes 2 train.py", "headway torchrun --nnodes 2 train.py"),
        ("srun python3 -m torch.distributed.run train.py", "srun headway torchrun train.py"),
        ("srun /opt/venv/bin/torchrun train.py  # torchrun", "srun headway torchrun train.py  # torchrun"),
    ],
)
def test_one_word_change_shows_the_exact_line(before: str, after: str) -> None:
    edit = read_script(f"#!/bin/bash\n# torchrun\necho torchrun\n{before}\n", "gpus").edit
    assert edit is not None
    assert (edit.line, edit.before, edit.after) == (4, before, after)


@pytest.mark.parametrize("line", ["headway torchrun train.py", "python train.py", "srun my-torchrun-like train.py"])
def test_no_change_is_proposed_if_the_line_does_not_start_torchrun(line: str) -> None:
    assert read_script(f"#!/bin/bash\n{line}\n", "gpus").edit is None


def test_import_knows_every_variable_that_the_plan_decides() -> None:
    source = (ROOT / "jobspec" / "resolve" / "environment.py").read_text()
    decided = set(re.findall(r'EnvVar\("([A-Z_]+)"[^\n]*(?:_of\(|decided_by|`)', source))
    assert {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"} <= decided <= set(DECIDED)


def test_accelerate_options_become_the_variables_that_accelerate_sets() -> None:
    launch = Path(str(importlib.util.find_spec("accelerate.utils.launch").origin))  # type: ignore[union-attr]
    known = launch.read_text()
    assert [name for name in ACCELERATE_VARIABLES.values() if f'"{name}"' not in known] == []


def test_script_that_starts_no_training_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clean.sh").write_text("#!/bin/bash\n#SBATCH -N 1\nrm -rf old\n")
    assert main(["import", "sbatch", "clean.sh", "-o", "job.yaml"]) == 1
    assert "clean.sh starts no training by `torchrun`" in capsys.readouterr().err
    assert not Path("job.yaml").exists()


def test_existing_file_is_replaced_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_CLUSTER", raising=False)
    Path("a.sh").write_text("torchrun train.py\n")
    Path("job.yaml").write_text("mine\n")
    assert main(["import", "sbatch", "a.sh", "-o", "job.yaml"]) == 1
    assert "job.yaml exists; add `--overwrite`" in capsys.readouterr().err
    assert Path("job.yaml").read_text() == "mine\n"
    assert main(["import", "sbatch", "a.sh", "-o", "job.yaml", "--overwrite"]) == 0
    assert "run:\n  - train.py\n" in Path("job.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing.sh"], 1, "missing.sh cannot be read: No such file or directory"),
        (["a.sh", "--set", "X"], 2, "`--set X` is not NAME=VALUE"),
        (["a.sh", "--cluster", "a.sh"], 1, "a.sh is not a Cluster document"),
        (["binary.sh"], 1, "binary.sh is not text in UTF-8: byte 0"),
    ],
)
def test_mistake_is_one_error(
    words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text("torchrun train.py\n")
    Path("binary.sh").write_bytes(b"\xff\xfe")
    assert main(["import", "sbatch", *words]) == code
    assert message in capsys.readouterr().err
