"""Runs the microbatches of a step through the stages of a pipeline, by a schedule of torch.distributed.pipelining."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from headway.runner.contract import Batch, Execution, Model
from headway.runner.train.parallel import DTYPES, Parts, RankMesh, stages_of


class Pipeline:
    """This rank's stages under one schedule."""

    def __init__(
        self, parts: Parts, mesh: RankMesh, execution: Execution, model: Model, batch: Batch, device: torch.device
    ) -> None:
        ranks = mesh.axis("pp")
        assert ranks is not None  # noqa: S101
        self._execution = execution
        held = batch.sequence_length // mesh.degrees.cp
        split = mesh.degrees.tp if execution.sequence_parallel else 1
        tokens = torch.empty(batch.micro_sequences, held, dtype=torch.int64, device="meta")
        hidden = torch.empty(
            batch.micro_sequences, held // split, model.hidden, dtype=DTYPES[execution.compute], device="meta", requires_grad=True
        )
        loss = torch.empty((), device="meta", requires_grad=True)
        count = mesh.degrees.pp * execution.virtual_stages
        self._stages = [
            PipelineStage(
                part,
                stage,
                count,
                device,
                input_args=tokens if part.is_first else hidden,
                output_args=loss if part.is_last else hidden,
                group=ranks.get_group(),
            )
            for stage, part in zip(stages_of(execution, mesh), parts, strict=True)
        ]
        self._schedules: dict[int, Any] = {}

    def backward(self, tokens: Tensor, targets: Tensor, rounds: int, starts: Tensor | None = None) -> Tensor:
        """Compute all gradients of `rounds` microbatches, (rounds x micro, held) each of tokens and targets, and
        (rounds x micro, sequence) starts of documents. Returns the mean loss, zero on ranks without the last stage. Collective
        over `pp`."""
        losses: list[Tensor] = []
        inputs = (tokens,) if self._stages[0].is_first else ()
        # Every stage gets them: each stage's rank has read the whole sequences.
        kwargs = {"targets": targets} | ({} if starts is None else {"starts": starts})
        self._schedule(rounds).step(*inputs, target=targets, losses=losses, return_outputs=False, **kwargs)
        return torch.stack(losses).detach().sum() if losses else torch.zeros((), device=tokens.device)

    def _schedule(self, rounds: int) -> Any:
        """Return the schedule of so many microbatches, which a history may change."""
        if rounds not in self._schedules:
            kind = get_schedule_class(self._execution.schedule)
            stages: Any = self._stages if issubclass(kind, PipelineScheduleMulti) else self._stages[0]
            # The last stage computes its loss itself, from the targets.
            self._schedules[rounds] = kind(stages, rounds, loss_fn=lambda loss, _: loss / rounds, scale_grads=False)
        return self._schedules[rounds]
