"""Creates the run directory before anything starts, and reads it back when a script asks how an attempt ended.

python -m headway.runner.rundir open RUNS NAME --attempt K < run.json     prints the path of attempts/K/run.json
    --job JOB       in the place of --attempt: the attempt that this job of the scheduler has opened, else the next one
    --spec FILE     keeps it next to run.json, so that an edited spec can be compared with what the attempt was made from;
                    values that it omits are those of run.json (contract/spec_values.py)
    --every-node    each node of the attempt calls it, none waits for another, and all get the same
python -m headway.runner.rundir exit-code RUN_JSON --or CODE              prints the verdict's code; without one CODE, or 81
"""

import argparse
import dataclasses
import errno
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.runner.contract import (
    ATTEMPT_TAKEN,
    Exit,
    RunConfig,
    RunDirectory,
    Verdict,
    from_json,
    read_verdict,
    settled,
    to_json,
    with_shared,
)
from headway.runner.posix import create_exclusive, write_atomic
from headway.runner.suspects import file_of, lemons

HANDLE_SCHEMA = "headway.handle/1"
_LOOK_EVERY_S = 0.1


def create_handle(directory: RunDirectory, name: str, job: str, facts: Mapping[str, Any]) -> None:
    """Write handle.json, which names the run (docs/records.md), unless there is one."""
    handle = {"schema": HANDLE_SCHEMA, "run": name, "job": job, "submitted_at": time.time(), **facts}
    create_exclusive(directory.handle, json.dumps(handle, indent=2).encode() + b"\n")


def create_handle_of_loop(directory: RunDirectory, world_size: int) -> None:
    """The handle of a run that no job describes: a loop that saves by headway.checkpoint, or an import."""
    name = directory.root.name
    facts = {"spec_hash": "", "slots": 1, "procs_per_slot": world_size, "world_size": world_size, "steps": None}
    create_handle(directory, name, name, {**facts, "trainer": "headway.checkpoint"})


def open_run(
    runs: Path,
    name: str,
    config: RunConfig,
    attempt: int,
    job: str | None = None,
    *,
    spec: bytes | None = None,
    launch: bytes | None = None,
    every_node: bool = False,
    run: str | None = None,
    hosts: Sequence[str] = (),
) -> RunDirectory:
    """Makes the directory of run `name`, or enters it again for a further attempt; writes the attempt's run.json.

    `job` is what the run is a run of; without it, `name` is `<job>-<spec hash>-<number>`. `spec` is what the configuration was made
    from and `launch` how it was started, kept for later comparison. `run` is what the other nodes call it where its folder here has
    another name; `hosts` are the scheduler's names of the attempt's nodes. Raises FileExistsError when the attempt has been opened
    before; with `every_node`, only when that was with another configuration.
    """
    directory = RunDirectory((runs / name).resolve(), attempt)
    directory.attempts.mkdir(parents=True, exist_ok=True)
    directory.attempt_directory.mkdir(
        exist_ok=every_node
        # One launcher an attempt: a second one at the same moment takes another.
    )
    for folder in (directory.chain, directory.checkpoints, directory.journals, directory.nodes):
        folder.mkdir(parents=True, exist_ok=True)
    if launch is not None:
        # Before anything else: who looks at the attempt finds out whose it is.
        create_exclusive(directory.launch, launch)
    config = _completed(config, run or name, directory)
    config = dataclasses.replace(config, run=run or name, store=dataclasses.replace(config.store, url=str(directory.shared)))
    create_exclusive(directory.secret_file, secrets.token_hex(32).encode() + b"\n", mode=0o600)
    facts = {"spec_hash": config.spec_hash, "slots": config.slots, "procs_per_slot": config.procs_per_slot}
    facts |= {"world_size": config.world_size, "steps": config.steps, "trainer": config.trainer.kind}
    create_handle(directory, name, job or name.rsplit("-", 2)[0], facts)
    if spec is not None:
        create_exclusive(directory.spec, spec)
    if hosts:
        create_exclusive(directory.hosts, "\n".join(hosts).encode() + b"\n")
    text = to_json(config, indent=2).encode() + b"\n"
    # Its time is when the attempt began, so it is never rewritten.
    if not create_exclusive(directory.run_json, text) and directory.run_json.read_bytes() != text:
        raise FileExistsError(directory.run_json)
    return directory


def attempt_of(directory: RunDirectory, job: str) -> int:
    """Return the number of the attempt that the scheduler's `job` has opened; the first of its nodes opens the next attempt.

    Raises OSError if the directory cannot be written.
    """
    directory.attempts.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = directory.attempt_numbers()
        for number in reversed(numbers):
            if _opened_by(directory.at(number)) == job:
                return number
        new = directory.attempts / f".tmp-{secrets.token_hex(6)}"
        new.mkdir()
        (new / directory.job.name).write_text(f"{job}\n")
        # Of the listing in which the job was looked for: another node may have made its attempt since.
        following = max(numbers, default=-1) + 1
        try:
            # rename(2) replaces no folder that has content: of several nodes one makes the attempt, and the others find its job in it.
            new.rename(directory.at(following).attempt_directory)
        except OSError as error:
            shutil.rmtree(new)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            # A client of NFS may list the folder from its cache for some seconds.
            time.sleep(_LOOK_EVERY_S)
        else:
            return following


def _opened_by(directory: RunDirectory) -> str | None:
    try:
        return directory.job.read_text().strip()
    except OSError:
        return None


def _completed(config: RunConfig, name: str, directory: RunDirectory) -> RunConfig:
    """Return the configuration with a script's arguments completed: those at the places `late` hold the run's name, its directory or
    the folder of its `files`. Writes these files, whose texts at the places `late_values` are completed alike."""
    options = dict(config.trainer.options)
    late, files, places = (options.pop(key, ()) for key in ("late", "files", "late_values"))
    if not (late or files):
        return config
    values = {"run": name, "run_directory": str(directory.root), "config": str(directory.config)}
    argv = [word.format(**values) if index in late else word for index, word in enumerate(options["argv"])]
    contents = json.loads(json.dumps(dict(files)))
    for *place, last in places:
        holder = contents
        for key in place:
            holder = holder[key]
        holder[last] = holder[last].format(**values)
    for file, content in contents.items():
        # Every node of the attempt may write it, each the same.
        directory.config.mkdir(exist_ok=True)
        write_atomic(directory.config / file, json.dumps(content, indent=2).encode() + b"\n")
    return dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, options={**options, "argv": argv}))


def _whole(spec: bytes, run: Mapping[str, Any]) -> bytes:
    """Return the spec with the values that its file leaves to run.json."""
    return json.dumps(with_shared(json.loads(spec), run), indent=2, sort_keys=True).encode() + b"\n"


def open_submitted(directory: RunDirectory) -> None:
    """Open the attempt from what its batch script has written, which has no Python. Every node may call it; all get the same.

    Raises OSError and RecordError if it cannot be read, FileExistsError if the attempt has been opened otherwise.
    """
    # It is written last.
    if directory.run_json.exists():
        return
    text = directory.submitted_run.read_text()
    spec = _whole(directory.submitted_run.with_name("spec.json").read_bytes(), json.loads(text))
    place = (directory.root.parent, directory.root.name, from_json(RunConfig, text), directory.attempt)
    open_run(*place, spec=spec, every_node=True)


def write_exclude(directory: RunDirectory, verdict: Verdict) -> None:
    """Write the hosts that the next attempt has to do without, if there are any, for the batch script. Raises OSError."""
    if hosts := suspects(directory, verdict):
        write_atomic(directory.exclude, f"{','.join(hosts)}\n".encode())


def suspects(directory: RunDirectory, verdict: Verdict) -> list[str]:
    """Host names that this verdict or one of an earlier attempt suspects, or that keep failing on this cluster, whatever runs there:
    excluding nodes replaces the list that stood before."""
    hosts = set(_lemons(directory)) | _hosts(directory, verdict)
    for attempt in range(directory.attempt):
        earlier = directory.at(attempt)
        hosts |= _hosts(earlier, read_verdict(earlier))
    return sorted(hosts)


def fruitless_before(directory: RunDirectory) -> tuple[int, frozenset[str]]:
    """Return how many attempts of the same job in a row, up to the one before this, ended without progress, and the hosts that verdicts
    of all earlier attempts suspect. Raises OSError, ValueError, KeyError for records that cannot be read.

    Such an attempt has no excuse, and no verdict, or the verdict to retry elsewhere without a host that none before it suspects. One with a
    node that has not started is not counted: a pod may wait for a place. An attempt that no job of a scheduler has opened was started by a
    person, and is always tried.
    """
    job = _job_of(directory)
    count = 0
    excluded: frozenset[str] = frozenset()
    for earlier in map(directory.at, range(directory.attempt)):
        verdict = read_verdict(earlier)
        hosts = _hosts(earlier, verdict)
        is_other = verdict is not None and (verdict.exit_code != Exit.RETRY_ELSEWHERE or not hosts <= excluded)
        excluded |= hosts
        if job is None or _job_of(earlier) != job or earlier.excused.exists() or is_other:
            count = 0
        elif verdict is None:
            count += any(earlier.nodes.glob("*.json"))
        else:
            count += all(earlier.node(node).exists() for node in verdict.suspects)
    return count, excluded


def _job_of(directory: RunDirectory) -> str | None:
    """Return the scheduler's job: what is behind a `/` counts the restarts of a JobSet."""
    opened_by = _opened_by(directory)
    return None if opened_by is None else opened_by.partition("/")[0]


def _hosts(directory: RunDirectory, verdict: Verdict | None) -> set[str]:
    return {host for index in (verdict.suspects if verdict else ()) if (host := _host(directory, index))}


def _host(directory: RunDirectory, node: int) -> str | None:
    """Return the host name of an attempt's node: its own, or the scheduler's if its runner has not started; None if unknown."""
    if directory.node(node).exists():
        return str(json.loads(directory.node(node).read_text())["host"])
    names = directory.hosts.read_text().split() if directory.hosts.exists() else []
    return names[node] if node < len(names) else None


def _lemons(directory: RunDirectory) -> dict[str, float]:
    cluster = from_json(RunConfig, directory.run_json.read_text()).cluster
    return {} if cluster is None else lemons(file_of(directory.root.parent, cluster), time.time())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headway.runner.rundir", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    opened = verbs.add_parser("open")
    opened.add_argument("runs", type=Path)
    opened.add_argument("name")
    which = opened.add_mutually_exclusive_group(required=True)
    which.add_argument("--attempt", type=int)
    which.add_argument("--job")
    opened.add_argument("--spec", type=Path)
    opened.add_argument("--every-node", action="store_true")
    code = verbs.add_parser("exit-code")
    code.add_argument("run_json", type=Path)
    code.add_argument("--or", dest="otherwise", type=int, required=True)
    arguments = parser.parse_args(argv)
    if arguments.verb == "open":
        text = sys.stdin.read()
        config = from_json(RunConfig, text)
        spec = None if arguments.spec is None else _whole(arguments.spec.read_bytes(), json.loads(text))
        attempt = arguments.attempt
        if arguments.job is not None:
            attempt = attempt_of(RunDirectory(arguments.runs / arguments.name), arguments.job)
        place = (arguments.runs, arguments.name, config, attempt)
        try:
            hosts = [host for host in os.environ.get("HEADWAY_NODES", "").split(",") if host]
            opened_run = open_run(*place, spec=spec, every_node=arguments.every_node, hosts=hosts)
        except FileExistsError:
            print(f"attempt {attempt} of run `{arguments.name}` has already been opened", file=sys.stderr)
            return ATTEMPT_TAKEN
        print(opened_run.run_json)
        return 0
    directory = RunDirectory.of(arguments.run_json, int(arguments.run_json.resolve().parent.name))
    verdict = read_verdict(directory)
    print(verdict.exit_code if verdict else settled(arguments.otherwise))
    return 0


if __name__ == "__main__":
    sys.exit(main())
