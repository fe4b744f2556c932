"""Queries NCCL's RAS threads, which watch each other since NCCL 2.24, by their text protocol.

    CLIENT PROTOCOL 2 -> SERVER PROTOCOL 2,  TIMEOUT 1 -> OK,  VERBOSE STATUS -> the report, and the end of the connection

(github.com/NVIDIA/nccl, src/ras/client.cc; the user guide's chapter RAS). One process of a node answers for the whole job.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from headway.runner.within import within

ADDRESS = "localhost:28028"  # NCCL's own
# NCCL answers another number with its own, and continues.
PROTOCOL = 2
# NCCL waits for its other processes in whole seconds. The run waits for none of them: this runs in parallel.
GATHER_S = 1
ANSWER_S = 3.0
REPORT_BYTES = 1 << 20
# The first ones of a job ask: all would get the same report, and each costs a message to all.
NODES = 2
_SECTIONS = ("Errors", "Warnings")


async def report(environment: Mapping[str, str], answer_s: float = ANSWER_S) -> str | None:
    """Return NCCL's report, as far as it came within `answer_s`. None if no process answers by the protocol."""
    if environment.get("NCCL_RAS_ENABLE") == "0":
        return None
    host, _, port = environment.get("NCCL_RAS_ADDR", ADDRESS).rpartition(":")
    received = bytearray()
    try:
        await within(answer_s, _receive(host.strip("[]"), int(port), received))
    except TimeoutError:
        pass
    except (OSError, ValueError):
        # No such address, no listener, a broken connection.
        return None
    return received.decode(errors="replace") or None


async def _receive(host: str, port: int, received: bytearray) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if not await _greeted(reader, writer):
            return
        writer.write(b"VERBOSE STATUS\n")
        while len(received) < REPORT_BYTES and (data := await reader.read(1 << 16)):
            received += data
    finally:
        writer.close()


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
    if not (await reader.readline()).upper().startswith(b"SERVER PROTOCOL "):
        return False
    writer.write(f"TIMEOUT {GATHER_S}\n".encode())
    return (await reader.readline()).strip().upper() == b"OK"


def summary(text: str) -> str | None:
    """Return the first finding of a report, heading and text, errors before warnings; None if it has none."""
    lines = text.splitlines()
    for section in _SECTIONS:
        begins = next((i + 2 for i, line in enumerate(lines[:-1]) if line == section and set(lines[i + 1]) == {"="}), len(lines))
        found: list[str] = []
        for line in lines[begins:]:
            if set(line) == {"="} or (found and not line.startswith(" ")):
                break
            if line.strip() and line not in _SECTIONS:
                found.append(line.strip())
        if found:
            return ": ".join([found[0], "; ".join(found[1:])] if found[1:] else found)
    return None


def write(path: Path, text: str) -> None:
    """Keeps the report; a full disk costs the evidence, not the run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return
