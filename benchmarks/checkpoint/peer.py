"""Runs torch.distributed.checkpoint as the peer: all modes of async_save on a CPU, and save and load."""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from benchmarks.checkpoint.training import everyone

State = Mapping[str, Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Options:
    """One configuration of dcp.async_save. `shared`: staged in shared memory; `tuned`: plans cached, two writer threads a rank."""

    kind: AsyncCheckpointerType
    reused: bool
    shared: bool
    staged_behind: bool
    tuned: bool = False

    def __str__(self) -> str:
        stager = f"{'reused' if self.reused else 'new'}{' shared-memory' if self.shared else ''} stager"
        extras = [", staged behind" if self.staged_behind else "", ", cached plan, 2 writers" if self.tuned else ""]
        return f"{self.kind.name}, {stager}{''.join(extras)}"

    def stager(self) -> DefaultStager:
        """Pinned memory and copies that do not block need an accelerator (torch 2.13, staging.py)."""
        return DefaultStager(StagingOptions(False, self.shared, self.staged_behind, False))


def every_options() -> Iterator[Options]:
    """THREAD and PROCESS; a stager a save, one reused, one reused in shared memory; staged at once or behind; and tuned ones."""
    for kind in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
        for staged_behind in (False, True):
            for reused, shared in ((False, False), (True, False), (True, True)):
                yield Options(kind, reused, shared, staged_behind)
        yield Options(kind, True, kind is AsyncCheckpointerType.PROCESS, staged_behind=True, tuned=True)


class _CachingPlanner(DefaultSavePlanner):
    """Plans are cached under the planner's class name (torch 2.13, planner.py): this class serves one kind of state."""


class DcpAsync:
    """dcp.async_save in one configuration."""

    def __init__(self, options: Options, folder: Path, group: dist.ProcessGroup) -> None:
        self.name, self._options, self._folder, self._group = str(options), options, folder, group
        self._stager = options.stager() if options.reused else None
        self._staged, self._saved = Future[None](), Future[Any]()

    def start(self, step: int, state: State) -> None:
        """Begin to save; return when training may continue up to its optimizer."""
        options = self._options
        answer = state_dict_saver.async_save(
            dict(state),
            storage_writer=FileSystemWriter(self._folder / f"{step}", thread_count=2 if options.tuned else 1),
            planner=_CachingPlanner(enable_plan_caching=True) if options.tuned else None,
            process_group=None if options.kind is AsyncCheckpointerType.PROCESS else self._group,
            async_checkpointer_type=options.kind,
            async_stager=self._stager or options.stager(),
        )
        if isinstance(answer, AsyncSaveResponse):
            self._staged, self._saved = answer.staging_completion, answer.upload_completion
        else:
            self._staged, self._saved = _done(), answer

    def before_optimizer(self) -> None:
        self._staged.result()

    def durable(self) -> bool:
        return self._saved.done()

    def finish(self) -> None:
        """Raise the save's error, and delete its files."""
        self._saved.result()
        delete(self._folder)


def _done() -> Future[None]:
    future = Future[None]()
    future.set_result(None)
    return future


def save(state: State, path: Path) -> None:
    state_dict_saver.save(dict(state), checkpoint_id=path)


def load(state: State, path: Path) -> None:
    state_dict_loader.load({name: dict(tensors) for name, tensors in state.items()}, checkpoint_id=path)


def delete(path: Path) -> None:
    """Deletes `path` when all ranks are done with it; collective."""
    everyone(True)
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    everyone(True)
