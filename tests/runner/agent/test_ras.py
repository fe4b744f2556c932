"""Tests reading NCCL's RAS report, from a server with the text protocol of src/ras/client_support.cc."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headway.runner.agent import ras

HEAD = """NCCL version 2.28.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======
"""
# From the chapter RAS of NCCL's user guide.
FINDINGS = """
INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
WARNINGS = """
Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def asked(serve: Serve, answer_s: float = 30.0) -> str | None:
    async def ask() -> str | None:
        served = asyncio.Event()

        async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer)
            writer.close()
            await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve_once, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await ras.report({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}, answer_s)
        finally:
            await served.wait()
            server.close()

    return asyncio.run(ask())


def nccl(report: str, *, ends: bool = True) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"CLIENT PROTOCOL 2\n"
        writer.write(b"SERVER PROTOCOL 2\n")
        assert await reader.readline() == b"TIMEOUT 1\n"
        writer.write(b"OK\n")
        assert await reader.readline() == b"VERBOSE STATUS\n"
        writer.write(report.encode())
        if not ends:
            await reader.read()

    return serve


async def _something_else(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_whole_report_is_returned() -> None:
    assert asked(nccl(HEAD + FINDINGS + WARNINGS)) == HEAD + FINDINGS + WARNINGS


def test_an_unfinished_report_is_returned_as_far_as_it_arrived() -> None:
    assert asked(nccl(HEAD, ends=False), 0.5) == HEAD


def test_another_protocol_or_an_unreachable_server_yields_no_report() -> None:
    assert asked(_something_else) is None
    assert asyncio.run(ras.report({"NCCL_RAS_ADDR": "127.0.0.1:1"})) is None
    assert asyncio.run(ras.report({"NCCL_RAS_ADDR": "nowhere"})) is None
    assert asyncio.run(ras.report({"NCCL_RAS_ENABLE": "0"})) is None


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (
            HEAD + FINDINGS + WARNINGS,
            "INCOMPLETE: Missing communicator data from 1 job process; Process 3487984 on node 172.16.64.213 managing GPU 5",
        ),
        (HEAD + WARNINGS, "TIMEOUT: Encountered 2 communication timeouts while gathering communicator data"),
        (HEAD + "\nWarnings\n========\n", None),
        ("", None),
    ],
    ids=["an error", "a warning", "nothing found", "no report"],
)
def test_the_first_finding_is_summarized_in_one_line(report: str, told: str | None) -> None:
    assert ras.summary(report) == told
