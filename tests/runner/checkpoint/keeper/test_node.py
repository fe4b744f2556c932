"""Tests the keeper in its node: started by the supervisor, found by workers and the agent, outliving both but not the node."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.runner.contract import Checkpoint as CheckpointConfig
from headway.runner.contract import Mesh, RunConfig, RunDirectory, Tier, Trainer
from headway.runner.messages import Link, Message, listen
from headway.runner.posix import write_atomic
from headway.runner.rundir import open_run
from tests.support import LIGHT
from tests.support.keepers import WAIT_S, gone, until

pytestmark = pytest.mark.slow

NAME = "case-0123abcd-1"
# Generation 1 seals step 5 and dies. Generation 2 prints what it finds, loses its keeper, prints what the next keeper has, and waits.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from tests.support.keepers import Node, Rank, until
out = Path(sys.argv[1])
node, generation = Node(out, name=os.environ["HEADWAY_KEEPER"]), int(os.environ["HEADWAY_GENERATION"])
with Rank(node, node.hello(generation=generation)) as rank:
    if generation == 1:
        rank.save(5)
        os.kill(os.getpid(), signal.SIGKILL)
    (out / "held").write_text(json.dumps(rank.held()))
    until((out / "killed").exists)
with Rank(node, node.hello(generation=generation)) as rank:
    after = rank.held()
    rank.save(6)
    (out / "held-after").write_text(json.dumps(after))
    until((out / "end").exists)
"""


def opened(tmp_path: Path, code: str = SCRIPT, **changes: Any) -> RunDirectory:
    script = tmp_path / "script.py"
    script.write_text(code)
    trainer = Trainer("script", {"argv": [str(script), str(tmp_path)], "logs": True})
    config = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=trainer, spec_hash="ab")
    return open_run(tmp_path, NAME, RunConfig(**{**vars(config), **changes}), 0)


@contextmanager
def node(directory: RunDirectory, index: int = 0) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-m", "headway.runner", str(directory.run_json), "--attempt", "0", "--node", str(index)]
    path = os.pathsep.join([LIGHT, str(Path(__file__).parents[4])])
    own = {"HEADWAY_NODES": "127.0.0.1,127.0.0.1", "HEADWAY_STANDBY": "0", "PYTHONPATH": path}
    with subprocess.Popen(argv, env={**os.environ, **own}) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> dict[int, str]:
    """The command of each child of the process that is still alive."""
    found = {}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(FileNotFoundError):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def keepers(pid: int) -> list[int]:
    return [child for child, line in children(pid).items() if "headway.runner.checkpoint.keeper" in line]


def test_a_keeper_outlives_workers_but_not_its_node_and_is_replaced(tmp_path: Path) -> None:
    with node(opened(tmp_path)) as supervisor:
        until((tmp_path / "held").exists)
        (keeper,) = keepers(supervisor.pid)
        os.kill(keeper, signal.SIGKILL)
        until(lambda: keepers(supervisor.pid) not in ([], [keeper]))
        (tmp_path / "killed").touch()
        until((tmp_path / "held-after").exists)
        (successor,) = keepers(supervisor.pid)
        supervisor.kill()
    assert json.loads((tmp_path / "held").read_text()) == [[0, 5, 1]]
    assert json.loads((tmp_path / "held-after").read_text()) == []
    until(lambda: gone(successor))


def test_a_node_that_never_saves_has_no_keeper(tmp_path: Path) -> None:
    directory = opened(tmp_path, trainer=Trainer("builtin"))
    with node(directory, index=1) as supervisor:
        until(lambda: any("headway.runner.agent.main" in line for line in children(supervisor.pid).values()))
        assert keepers(supervisor.pid) == []


# --- the coordinator's questions --------------------------------------------------------------------------------------------


class Coordinator:
    """Answers one agent's join with orders, and receives its messages until the attempt ends."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.heard: asyncio.Queue[Message] = asyncio.Queue()
        self.left = asyncio.Event()

    async def __aenter__(self) -> "Coordinator":
        secret = self.directory.secret()
        self.listener = await listen("127.0.0.1", 0, secret, NAME, self._heard, lambda _, __: self.left.set())
        write_atomic(self.directory.coordinator, json.dumps({"host": "127.0.0.1", "port": self.listener.port}).encode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.link.send("stop", 1, 1, {"exit_code": 0})
        await asyncio.wait_for(self.left.wait(), WAIT_S)
        self.listener.close()

    def _heard(self, link: Link, message: Message) -> None:
        self.link = link
        self.heard.put_nowait(message)

    async def hear(self, kind: str, what: str | None = None) -> dict[str, Any]:
        """Return the body of the next message of this kind."""
        while True:
            message = await asyncio.wait_for(self.heard.get(), WAIT_S)
            if message.kind == kind and what in (None, message.body.get("what")):
                return message.body


# The variables of a worker, and one capture.
PARTNERED = """
import os, sys
from pathlib import Path
from tests.support.keepers import Node, Rank
out = Path(sys.argv[1])
node = Node(out, name=os.environ["HEADWAY_KEEPER"])
with Rank(node, node.hello(generation=4)) as rank:
    rank.save(5)
(out / "partner").write_text(os.environ.get("HEADWAY_PARTNER", "nobody"))
"""


def test_an_agent_reports_its_keepers_holdings_and_workers_their_partner(tmp_path: Path) -> None:
    tiers = CheckpointConfig((Tier("memory", 1), Tier("peer", 1)))
    # Without boot, which would first meet the other node's rank.
    argv = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    trainer = Trainer("script", {"argv": argv, "torchrun": {"python": False, "shown": None}})
    directory = opened(tmp_path, PARTNERED, slots=2, mesh=Mesh(dp_replicate=2), checkpoint=tiers, trainer=trainer)

    async def scenario() -> list[dict[str, Any]]:
        async with Coordinator(directory) as coordinator:
            await coordinator.hear("join")
            coordinator.link.send("survey", 0, 1, {})
            answers = [await coordinator.hear("evidence", "held")]
            coordinator.link.send("assign", 0, 1, {"slot": 1})
            while (port := (await coordinator.hear("beat"))["port"]) is None:
                continue
            where = {"master_addr": "127.0.0.1", "master_port": port}
            start = {"base": None, "slots": 2, "moved": [], "restarts": 0, **where}
            coordinator.link.send("start", 4, 1, start)
            await coordinator.hear("exited")
            coordinator.link.send("survey", 4, 1, {})
            answers.append(await coordinator.hear("evidence", "held"))
            return answers

    with node(directory, index=1) as supervisor:
        until(directory.keeper(1).exists)
        before, after = asyncio.run(scenario())
        assert supervisor.wait(WAIT_S) == 0
    assert before == {"what": "held", "holdings": []}
    (holding,) = after["holdings"]
    assert (holding["rank"], holding["step"], holding["generation"]) == (0, 5, 4)
    assert len(holding["part_xxh3_128"]) == 32
    assert (tmp_path / "partner").read_text() == str(directory.keeper(0))
