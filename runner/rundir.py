"""Creates the run directory before anything starts, and reads it back when a script asks how an attempt ended.

python -m headway.runner.rundir open RUNS NAME --attempt K < run.json     prints the path of attempts/K/run.json
    --spec FILE     keeps it next to run.json, so that an edited spec can be compared with what the attempt was made from;
                    values that it omits are those of run.json (contract/spec_values.py)
    --every-node    each node of the attempt calls it, none waits for another, and all get the same
python -m headway.runner.rundir exit-code RUN_JSON --or CODE              prints the verdict's code; without one CODE, or 81
python -m headway.runner.rundir suspects RUN_JSON                         prints the hosts suspected so far, comma-separated
"""

import argparse
import dataclasses
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.runner.contract import (
    ATTEMPT_TAKEN,
    RunConfig,
    RunDirectory,
    from_json,
    read_verdict,
    settled,
    to_json,
    with_shared,
)
from headway.runner.posix import create_exclusive
from headway.runner.suspects import file_of, lemons

HANDLE_SCHEMA = "headway.handle/1"


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
) -> RunDirectory:
    """Makes the directory of run `name`, or enters it again for a further attempt; writes the attempt's run.json.

    `job` is what the run is a run of; without it, `name` is `<job>-<spec hash>-<number>`. `spec` is what the configuration was made
    from and `launch` how it was started, kept for later comparison. `run` is what the other nodes call it where its folder here has
    another name. Raises FileExistsError when the attempt has been opened before; with `every_node`, only when that
    was with another configuration.
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
    config = dataclasses.replace(config, run=run or name, store=dataclasses.replace(config.store, url=str(directory.shared)))
    create_exclusive(directory.secret_file, secrets.token_hex(32).encode() + b"\n", mode=0o600)
    facts = {"spec_hash": config.spec_hash, "slots": config.slots, "procs_per_slot": config.procs_per_slot}
    facts |= {"world_size": config.world_size, "steps": config.steps, "trainer": config.trainer.kind}
    create_handle(directory, name, job or name.rsplit("-", 2)[0], facts)
    if spec is not None:
        create_exclusive(directory.spec, spec)
    text = to_json(config, indent=2).encode() + b"\n"
    # Its time is when the attempt began, so it is never rewritten.
    if not create_exclusive(directory.run_json, text) and directory.run_json.read_bytes() != text:
        raise FileExistsError(directory.run_json)
    return directory


def _whole(spec: bytes, run: Mapping[str, Any]) -> bytes:
    """Return the spec with the values that its file leaves to run.json."""
    return json.dumps(with_shared(json.loads(spec), run), indent=2, sort_keys=True).encode() + b"\n"


def suspects(directory: RunDirectory) -> list[str]:
    """Host names that a verdict of this or an earlier attempt suspects, or that keep failing on this cluster, whatever runs there:
    excluding nodes replaces the list that stood before."""
    hosts = set(_lemons(directory))
    for attempt in range(directory.attempt + 1):
        earlier = directory.at(attempt)
        verdict = read_verdict(earlier)
        files = [earlier.node(index) for index in (verdict.suspects if verdict else ())]
        hosts |= {json.loads(path.read_text())["host"] for path in files if path.exists()}
    return sorted(hosts)


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
    opened.add_argument("--attempt", type=int, required=True)
    opened.add_argument("--spec", type=Path)
    opened.add_argument("--every-node", action="store_true")
    code = verbs.add_parser("exit-code")
    code.add_argument("run_json", type=Path)
    code.add_argument("--or", dest="otherwise", type=int, required=True)
    verbs.add_parser("suspects").add_argument("run_json", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.verb == "open":
        text = sys.stdin.read()
        config = from_json(RunConfig, text)
        spec = None if arguments.spec is None else _whole(arguments.spec.read_bytes(), json.loads(text))
        place = (arguments.runs, arguments.name, config, arguments.attempt)
        try:
            opened_run = open_run(*place, spec=spec, every_node=arguments.every_node)
        except FileExistsError:
            print(f"attempt {arguments.attempt} of run `{arguments.name}` has already been opened", file=sys.stderr)
            return ATTEMPT_TAKEN
        print(opened_run.run_json)
        return 0
    directory = RunDirectory.of(arguments.run_json, int(arguments.run_json.resolve().parent.name))
    verdict = read_verdict(directory)
    if arguments.verb == "exit-code":
        print(verdict.exit_code if verdict else settled(arguments.otherwise))
    else:
        print(",".join(suspects(directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
