"""Measures the cost of `headway check`: one job from a cold start, and a thousand in one call, compared with a JSON Schema checker."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.claim import Claim, Command, interleaved, judged, report

ROOT = Path(__file__).parents[1]
HEADWAY = Path(sys.executable).with_name("headway")
PEER = ROOT / ".venv-peers" / "check-jsonschema" / "bin" / "check-jsonschema"
PEER_NAME = "check-jsonschema 0.39.0 with the schema of `headway schema`"

_JOBS = 1000
_COLD_S, _COLD_ROUNDS = 0.4, 15
_MANY_S, _MANY_ROUNDS = 10.0, 3


def claims(folder: Path) -> Iterator[Claim]:
    """Yield both claims; their documents, and the bytecode of both programs, are put into `folder`."""
    schema = folder / "schema.json"
    schema.write_bytes(subprocess.run([HEADWAY, "schema"], capture_output=True, check=True).stdout)
    ours, peer = _pair(_one_job(folder / "one"), schema, "1 document: no problems", ["job.yaml"])
    yield judged(
        "`headway check` of one job with its cluster",
        interleaved(ours, peer, _COLD_ROUNDS, folder / "bytecode"),
        PEER_NAME,
        _COLD_S,
        _conditions(_COLD_ROUNDS, "each run a new process; the job's rendered files are read back"),
    )
    ours, peer = _pair(_many_jobs(folder / "many"), schema, f"{_JOBS + 1} documents: no problems", ["."])
    yield judged(
        f"`headway check` of {_JOBS} jobs and their cluster in one call",
        interleaved(ours, peer, _MANY_ROUNDS, folder / "bytecode"),
        PEER_NAME,
        _MANY_S,
        _conditions(_MANY_ROUNDS, "all in one folder"),
    )


def _pair(folder: Path, schema: Path, says: str, checked: list[str]) -> tuple[Command, Command]:
    """headway and the peer on the documents of the folder."""
    documents = sorted(path.name for path in folder.glob("*.yaml"))
    ours = Command([HEADWAY, "check", *checked], folder, says)
    return ours, Command([PEER, "--schemafile", schema, *documents], folder, "ok -- validation done")


def _one_job(folder: Path) -> Path:
    """Return the story of two nodes on RoCE on one of its clusters: two documents, and what was rendered from them."""
    story = ROOT / "examples" / "two-node-roce"
    shutil.copytree(story / "rendered", folder / "rendered")
    shutil.copy(story / "slurm-cluster.yaml", folder)
    (folder / "job.yaml").write_text(_with(story / "job.yaml", cluster="two-roce-nodes"))
    return folder


def _many_jobs(folder: Path) -> Path:
    """Return one job under many names, and its cluster."""
    story = ROOT / "examples" / "two-node-slurm"
    folder.mkdir()
    shutil.copy(story / "cpu-cluster.yaml", folder)
    for number in range(_JOBS):
        text = _with(story / "job.yaml", cluster="two-cpu-nodes", name=f"job-{number}")
        (folder / f"job-{number}.yaml").write_text(text)
    return folder


def _with(document: Path, **fields: str) -> str:
    """Return the document with other values of top-level fields that stand on one line."""
    text = document.read_text()
    for field, value in fields.items():
        text, replaced = re.subn(rf"^{field}: .*$", f"{field}: {value}", text, count=1, flags=re.MULTILINE)
        if not replaced:
            raise ValueError(f"{document} has no line `{field}: ...`")
    return text


def _conditions(rounds: int, more: str) -> str:
    return (
        f"{rounds} rounds in turn, bytecode and files cached, Python {platform.python_version()}, {os.cpu_count()} CPUs; {more}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        sys.exit(report(claims(Path(path)), sys.argv[1:]))
