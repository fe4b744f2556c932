"""Finds the training program in a command: takes srun, containers and launchers such as torchrun off, and keeps their options."""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from headway.sbatch.notes import NoteKind
from headway.sbatch.options import Command, of_slurm, read_options
from headway.sbatch.text import Text, join, names

_PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ELASTIC = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic")
# Flags of torchrun (torch/distributed/run.py), of torch.distributed.launch, and those of accelerate and DeepSpeed that take no value
# (accelerate/commands/launch.py; deepspeed/launcher/runner.py).
_TORCHRUN_FLAGS = names(
    """
    standalone module no-python run-path use-env virtual-local-rank m
    """
)
_TORCHRUN_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_ACCELERATE_FLAGS = names(
    """
    multi-gpu cpu tpu use-deepspeed use-fsdp use-megatron-lm use-xpu mps debug quiet no-python same-network module m
    enable-cpu-affinity dynamo-use-dynamic dynamo-use-fullgraph no-tpu-cluster use-parallelism-config
    """
)
_DEEPSPEED_FLAGS = names(
    """
    force-multi module no-python no-ssh no-ssh-check no-local-rank bind-cores-to-rank elastic-training enable-each-rank-log
    """
)
# Options of apptainer exec and run that take no value (apptainer-exec(1)).
_APPTAINER_FLAGS = names(
    """
    nv rocm nvccli contain containall cleanenv no-home writable writable-tmpfs fakeroot ipc pid uts net no-init no-privs keep-privs
    compat userns c C e f p u w i unsquash no-eval no-umask no-pid underlay sharens disable-cache allow-setuid
    """
)
_APPTAINER_SHORT = {
    "B": "bind",
    "H": "home",
    "W": "workdir",
    "o": "overlay",
    "S": "scratch",
    "e": "cleanenv",
    "c": "contain",
    "C": "containall",
    "f": "fakeroot",
    "i": "ipc",
    "p": "pid",
    "u": "userns",
    "w": "writable",
}
_ENROOT_FLAGS = frozenset(["rw", "r", "w", "root"])
_ENROOT_SHORT = {"m": "mount", "e": "env", "c": "rc", "r": "root", "w": "rw"}
# Programs that run another one, and what of them matters.
_WRAPPERS = {
    "time": "measures the time",
    "nohup": "keeps the command when a terminal closes",
    "exec": "replaces the shell",
    "command": "runs a command",
    "stdbuf": "sets the buffering of the output",
    "unbuffer": "sets the buffering of the output",
    "timeout": "ends the command after a time: use `limits.attempt.time`",
    "numactl": "binds processes: headway binds each rank to the processors of its GPU",
    "taskset": "binds processes: headway binds each rank to the processors of its GPU",
    "nsys": "profiles the command",
    "ncu": "profiles the command",
    "perf": "profiles the command",
    "py-spy": "profiles the command",
    "strace": "traces the command",
    "nice": "lowers the priority",
    "ionice": "lowers the priority",
}
# Programs that run a command in an environment of Python: `uv run`.
RUNNERS = names(
    """
    uv poetry conda mamba micromamba pixi hatch pdm pipenv
    """
)
_BY_WHAT = "headway starts containers by pyxis or Apptainer"
_OTHERS = {
    "docker": "neither Slurm nor headway starts containers by docker",
    "podman": _BY_WHAT,
    "podman-hpc": _BY_WHAT,
    "shifter": _BY_WHAT,
    "charliecloud": _BY_WHAT,
    "ch-run": _BY_WHAT,
    "sarus": _BY_WHAT,
    "horovodrun": "Horovod has ranks without torch's variables",
    "ray": "Ray starts processes itself",
    "colossalai": "its launcher has no counterpart; give the script to torchrun",
    "parallel": "several commands at once are several jobs, or a `sweep`",
    "mpirun": "",
    "mpiexec": "",
    "orterun": "",
}
# Programs that jobs run before or after the training.
_ASIDE = names(
    """
    cp mv rm rsync tar unzip gzip wget curl aws gsutil rclone scp pip pip3 dcgmi ray wandb huggingface-cli hf ln touch chmod find
    """
)


LOGIN = "a login shell reads the profile of the user: put what the training needs of it into `setup`"


class Launch(Struct):
    """A command that may be the training.

    `launcher` is what starts the ranks: `torchrun`, `accelerate`, `deepspeed`, `srun` or nothing. `notes` have the kind, the words and
    the reason. `inner` is the text behind `bash -c`, which is a script, and `file` the name of a script that bash runs.
    """

    line: int
    launcher: str = ""
    srun: Command | None = None
    options: Command | None = None
    container: str = ""
    container_options: Command | None = None
    image: Text | None = None
    program: list[Text] = field(default_factory=list)
    is_module: bool = False
    is_python: bool = True
    environment: dict[str, Text] = field(default_factory=dict)
    notes: list[tuple[NoteKind, str, str]] = field(default_factory=list)
    inner: Text | None = None
    file: Text | None = None
    arguments: list[Text] = field(default_factory=list)
    """The arguments of the script in `file`."""
    is_aside: bool = False
    """Whether it is certainly not the training."""
    used: set[str] = field(default_factory=set)
    """Names of the variables that the command itself refers to."""

    @property
    def name(self) -> str:
        """Return the name of the program, without its folder."""
        return (self.program[0].literal or "").rpartition("/")[2] if self.program else ""

    @property
    def weight(self) -> int:
        """Return how likely it is the training, among other commands of the script."""
        if not self.program or self.is_aside or (not self.is_python and (not self.launcher or self.name in _ASIDE)):
            return 0
        if self.launcher in ("torchrun", "accelerate", "deepspeed"):
            return 4
        return 3 if self.launcher and self.is_python else 2 if self.is_python else 1

    def note(self, kind: NoteKind, source: str, why: str) -> None:
        self.notes.append((kind, source, why))


def launch_of(words: Sequence[Text], line: int, outer: Launch | None = None) -> Launch:
    """Take the launchers off the words of a command; `outer` is what a shell around it has been started with."""
    found = outer or Launch(line)
    rest = list(words)
    while rest:
        name = (rest[0].literal or rest[0].shown).rpartition("/")[2]
        if _ASSIGNMENT.match(rest[0].shown):
            variable, value = rest[0].partition("=")
            found.environment[variable.shown] = value or Text()
            rest = rest[1:]
            continue
        take = _TAKERS.get(name) or (_take_python if _PYTHON.fullmatch(name) else None)
        if take is None and name in _WRAPPERS:
            take = _take_wrapper
        if take is None and name in _OTHERS:
            take = _take_other
        if take is None and (found.launcher or name in RUNNERS) and any(map(_is_program, rest[1:])):
            take = _take_unknown
        if take is None:
            found.program, found.is_python = rest, False
            return found
        remaining = take(found, rest)
        if remaining is None:
            return found
        rest = remaining
    return found


def _take_srun(found: Launch, words: list[Text]) -> list[Text]:
    found.srun = of_slurm(words[1:], found.line)
    found.launcher = found.launcher or "srun"
    image = found.srun.last("container-image")
    if image is not None:
        found.container, found.container_options, found.image = "pyxis", found.srun, image.value
    return list(found.srun.rest)


def _take_headway(found: Launch, words: list[Text]) -> list[Text] | None:
    if len(words) > 1 and words[1].literal == "torchrun":
        return _take_torchrun(found, words[1:])
    found.program, found.is_python = words, False
    return None


def _take_torchrun(found: Launch, words: list[Text]) -> list[Text] | None:
    found.launcher = "torchrun"
    found.options = read_options(words[1:], _TORCHRUN_SHORT, _TORCHRUN_FLAGS, found.line)
    names = {option.name for option in found.options.options}
    found.is_module, found.is_python = bool(names & {"module", "m"}), "no-python" not in names
    found.program = list(found.options.rest)
    return None


def _take_accelerate(found: Launch, words: list[Text]) -> list[Text] | None:
    if len(words) < 2 or words[1].literal != "launch":
        found.program, found.is_python = words, False
        return None
    found.launcher = "accelerate"
    found.options = read_options(words[2:], {"m": "module"}, _ACCELERATE_FLAGS, found.line)
    names = {option.name for option in found.options.options}
    found.is_module, found.is_python = bool(names & {"module", "m"}), "no-python" not in names
    found.program = list(found.options.rest)
    return None


def _take_deepspeed(found: Launch, words: list[Text]) -> list[Text] | None:
    found.launcher = "deepspeed"
    found.options = read_options(words[1:], {"H": "hostfile", "i": "include", "e": "exclude"}, _DEEPSPEED_FLAGS, found.line)
    names = {option.name for option in found.options.options}
    found.is_module, found.is_python = "module" in names, "no-python" not in names
    found.program = list(found.options.rest)
    return None


def _take_python(found: Launch, words: list[Text]) -> list[Text] | None:
    rest = words[1:]
    while rest and rest[0].starts("-"):
        option = rest[0].literal or ""
        if option == "-m" and len(rest) > 1:
            module = rest[1].literal or ""
            if module.startswith(_ELASTIC):
                if module.endswith("launch"):
                    found.note(NoteKind.CHECK, "torch.distributed.launch", _LOCAL_RANK)
                return _take_torchrun(found, rest[1:])
            if module in ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"):
                return _take_accelerate(found, [rest[1], *([] if module.endswith("cli") else [_LAUNCH]), *rest[2:]])
            if module in ("deepspeed.launcher.runner", "deepspeed"):
                return _take_deepspeed(found, rest[1:])
            found.is_module, found.is_python, found.program = True, True, rest[1:]
            return None
        if option in ("-c", "-"):
            found.program, found.is_python, found.is_aside = words, False, True
            return None
        if option in ("-X", "-W") and len(rest) > 1:
            found.note(
                NoteKind.UNREAD, f"{option} {rest[1].shown}", "options of Python are not in a job; PYTHON... variables are"
            )
            rest = rest[2:]
            continue
        if option == "-u":
            found.note(NoteKind.REPLACED, "python -u", "headway sets PYTHONUNBUFFERED")
        else:
            found.note(NoteKind.UNREAD, option, "options of Python are not in a job; PYTHON... variables are")
        rest = rest[1:]
    found.program, found.is_python = (rest, True) if rest else (words, False)
    return None


_LAUNCH = Text(("launch",))
_LOCAL_RANK = (
    "the launcher gives each rank an argument `--local_rank` or `--local-rank`, and headway does not: the script has to take LOCAL_RANK "
    "from its environment"
)


def _take_shell(found: Launch, words: list[Text]) -> list[Text] | None:
    rest = words[1:]
    while rest and rest[0].starts("-"):
        option = rest[0].literal or ""
        rest = rest[1:]
        if "l" in option:
            found.note(NoteKind.CHECK, f"bash {option}", LOGIN)
        if option.startswith("--"):
            continue
        if "c" in option:
            found.inner = rest[0] if rest else Text()
            for more in rest[1:]:
                found.note(NoteKind.UNREAD, more.shown, "an argument of the shell behind the text of `-c`")
            return None
        if option in ("-o", "+o"):
            rest = rest[1:]
    if rest:
        found.file, found.arguments = rest[0], rest[1:]
        found.program, found.is_python = words, False
    return None


def _take_apptainer(found: Launch, words: list[Text]) -> list[Text] | None:
    read = read_options(words[1:], _APPTAINER_SHORT, _APPTAINER_FLAGS, found.line)
    verb = read.rest[0].literal if read.rest else None
    if verb not in ("exec", "run"):
        found.program, found.is_python = words, False
        return None
    read = read_options(read.rest[1:], _APPTAINER_SHORT, _APPTAINER_FLAGS, found.line)
    found.container, found.container_options = "apptainer", read
    found.image = read.rest[0] if read.rest else None
    if verb == "run":
        found.note(NoteKind.CHECK, "run", "the image's own runscript does not run: the command behind the image does")
    return list(read.rest[1:])


def _take_enroot(found: Launch, words: list[Text]) -> list[Text] | None:
    if len(words) < 2 or words[1].literal != "start":
        found.program, found.is_python = words, False
        return None
    read = read_options(words[2:], _ENROOT_SHORT, _ENROOT_FLAGS, found.line)
    found.container, found.container_options = "enroot", read
    found.image = read.rest[0] if read.rest else None
    return list(read.rest[1:])


def _take_env(found: Launch, words: list[Text]) -> list[Text]:
    rest = words[1:]
    while rest and rest[0].starts("-"):
        taken = 2 if rest[0].literal in ("-u", "-C", "--unset", "--chdir") else 1
        found.note(NoteKind.UNREAD, f"env {join(rest[:taken]).shown}", "an option of `env`")
        rest = rest[taken:]
    return rest


def _take_mpi(found: Launch, words: list[Text]) -> list[Text]:
    found.launcher = found.launcher or "srun"
    program = next((index for index, word in enumerate(words[1:], 1) if _is_program(word)), len(words))
    for at, word in enumerate(words[1:program], 1):
        if word.literal == "-x" and at + 1 < program and "=" in words[at + 1].shown:
            variable, value = words[at + 1].partition("=")
            found.environment[variable.shown] = value or Text()
    found.note(
        NoteKind.REPLACED,
        join(words[:program]).shown,
        "headway starts a runner on each node, which starts the ranks, without MPI",
    )
    return words[program:]


def _take_ssh(found: Launch, words: list[Text]) -> list[Text] | None:
    """Take ssh or pdsh off, behind whose options are a host and the text of a shell."""
    takes_host = words[0].shown.endswith("ssh") and not words[0].shown.endswith("pdsh")
    read = read_options(
        words[1:],
        {},
        names(
            """
    A a C f g K k M N n q S s T t v X x Y y 4 6
    """
        ),
        found.line,
    )
    rest = read.rest[1:] if takes_host else read.rest
    if not rest:
        found.program, found.is_python = words, False
        return None
    found.note(NoteKind.UNREAD, words[0].shown, "Slurm starts headway's runner on each node, without ssh")
    found.inner = join(rest)
    return None


def _take_wrapper(found: Launch, words: list[Text]) -> list[Text]:
    """Take a program off that runs another one. Its own options are not read: it ends where a program is that runs trainings."""
    name = words[0].shown.rpartition("/")[2]
    program = next((index for index, word in enumerate(words[1:], 1) if _is_program(word)), None)
    program = program if program is not None else 1
    harmless = name in ("exec", "command", "time", "nohup", "numactl", "taskset")
    found.note(NoteKind.OMITTED if harmless else NoteKind.UNREAD, join(words[:program]).shown, _WRAPPERS[name])
    return words[program:]


def _take_unknown(found: Launch, words: list[Text]) -> list[Text]:
    program = next(index for index, word in enumerate(words[1:], 1) if _is_program(word))
    why = "a program that runs the others: its own options are not read; a site's wrapper of containers is `code.image`"
    if words[0].literal in RUNNERS:
        why = "it runs a command in an environment: activate that by a line of `setup`"
    found.note(NoteKind.UNREAD, join(words[:program]).shown, why)
    return words[program:]


def _take_other(found: Launch, words: list[Text]) -> list[Text] | None:
    name = words[0].shown.rpartition("/")[2]
    program = next((index for index, word in enumerate(words[1:], 1) if _is_program(word)), None)
    if program is None:
        found.program, found.is_python = words, False
        return None
    found.note(NoteKind.UNREAD, join(words[:program]).shown, _OTHERS[name])
    return words[program:]


def _is_program(word: Text) -> bool:
    name = (word.literal or "").rpartition("/")[2]
    return name in _TAKERS or _PYTHON.fullmatch(name) is not None


_TAKERS: Mapping[str, Callable[[Launch, list[Text]], list[Text] | None]] = {
    "srun": _take_srun,
    "headway": _take_headway,
    "torchrun": _take_torchrun,
    "accelerate": _take_accelerate,
    "accelerate-launch": lambda found, words: _take_accelerate(found, [words[0], _LAUNCH, *words[1:]]),
    "deepspeed": _take_deepspeed,
    "apptainer": _take_apptainer,
    "singularity": _take_apptainer,
    "enroot": _take_enroot,
    "env": _take_env,
    "ssh": _take_ssh,
    "pdsh": _take_ssh,
    "bash": _take_shell,
    "sh": _take_shell,
    "zsh": _take_shell,
    "mpirun": _take_mpi,
    "mpiexec": _take_mpi,
    "orterun": _take_mpi,
}
