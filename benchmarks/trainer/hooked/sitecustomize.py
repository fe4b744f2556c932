"""Puts the turns before each step of the builtin trainer, in the process that imports it."""

import os
import sys
from typing import Any

from benchmarks.trainer.on_cpu import AfterImport


def _take_turns(gradients: Any) -> None:
    from benchmarks.trainer.turns import Alternation

    compute, alternation = gradients.Gradients.of, Alternation.of(os.environ)

    def in_turn(self: Any, *arguments: Any) -> Any:
        alternation.before_step()
        return compute(self, *arguments)

    gradients.Gradients.of = in_turn


# The trainer itself is `__main__`.
sys.meta_path.insert(0, AfterImport({"headway.runner.train.gradients": _take_turns}))
