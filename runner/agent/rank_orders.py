"""Makes the supervisor's order for one rank of this node, of a worker or of a standby."""

import os
from pathlib import Path

from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.flight import Recorder
from headway.runner.agent.launch import command, make_folders
from headway.runner.agent.protocol import RankOrder
from headway.runner.contract import RunDirectory
from headway.runner.contract.orders import StartRanks
from headway.runner.worker import JOINS


def rank_order(
    state: AgentState, recorder: Recorder, slot: int, local_rank: int, start: StartRanks, *, joins: int = 0
) -> RankOrder:
    """Return the order, and make the folders of its files. `joins`: the number of the start of a replica group that was lost.

    Raises OSError, and ValueError for a device that does not exist.
    """
    directory = state.directory
    order = command(state.config, directory, slot, local_rank, state.generation, start, os.environ)
    directory.stacks(order.rank).parent.mkdir(exist_ok=True)
    make_folders(order)
    own = {
        "HEADWAY_STACKS": str(directory.stacks(order.rank)),
        "HEADWAY_MODULES": str(modules_file(directory, state.node)),
    }
    if joins:
        own[JOINS] = str(joins)
    order.environment = {**recorder.variables(state.generation), **order.environment, **own}
    return order


def modules_file(directory: RunDirectory, node: int) -> Path:
    """Return the file in which the first worker of a node lists the modules that it has imported."""
    return directory.attempt_directory / f"modules-{node}.json"
