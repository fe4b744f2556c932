"""Reads the parts of run.json that the builtin trainer needs."""

from dataclasses import dataclass

from headway.runner.contract import Batch, Execution, Model, Optimizer, RunConfig, decode
from headway.runner.history import at


@dataclass(frozen=True)
class Job:
    """The parts of run.json, which the plan guarantees to exist."""

    config: RunConfig
    model: Model
    batch: Batch
    optimizer: Optimizer
    steps: int
    execution: Execution

    @classmethod
    def of(cls, config: RunConfig) -> "Job":
        if config.model is None or config.batch is None or config.optimizer is None or config.steps is None:
            raise ValueError("run.json: the builtin trainer needs model, batch, optimizer and steps")
        execution = decode(Execution, dict(config.trainer.options))
        return cls(config, config.model, config.batch, config.optimizer, config.steps, execution)

    def at(self, step: int) -> "Job":
        """Return the job of the step that follows `step` completed ones: a history may have changed values."""
        config = at(self.config, step)
        return self if config is self.config else Job.of(config)
