"""Somebody's script as a worker: unchanged, with signs of life and verified checkpoints through hooks that it does not see."""

from headway.runner.boot.hooks import prepare
from headway.runner.boot.script import main

__all__ = ["main", "prepare"]
