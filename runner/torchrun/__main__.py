"""Runs torchrun's command line under headway's agents: `python -m headway.runner.torchrun ARGS...`, once on each node.

The standby workers import torch in parallel with this process, which needs it for torchrun's parser, and are passed on
to the supervisor.
"""

import os
import sys
from typing import NoReturn

from headway.runner.imports import uncollected
from headway.runner.torchrun import early


def main() -> NoReturn:
    begun = early.begin(sys.argv[1:], os.environ)
    with uncollected():
        from headway.runner.torchrun.launcher import launch  # noqa: PLC0415  imports torch

    launch(sys.argv[1:], begun)


if __name__ == "__main__":
    main()
