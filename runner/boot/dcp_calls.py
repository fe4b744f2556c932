"""Hooks of torch.distributed.checkpoint: everything that saves or loads comes through one function each, whatever name it was imported by.

Planners and arguments stay what they were. This imports nothing of torch: it is itself imported while torch is.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from headway.runner.boot import saved
from headway.runner.boot.signs import current, in_section, within
from headway.runner.boot.unseen import carefully, unseen


def hook_saver(module: Any) -> None:
    """torch.distributed.checkpoint.state_dict_saver."""
    module._save_state_dict = _saving(module._save_state_dict)
    module.async_save = within("save", module.async_save)


def hook_loader(module: Any) -> None:
    """torch.distributed.checkpoint.state_dict_loader."""
    module._load_state_dict = _loading(module._load_state_dict)


def hook_state_dict(module: Any) -> None:
    """torch.distributed.checkpoint.state_dict: it steps an optimizer that has no state yet, to give it one; that is no step."""
    original = module._init_optim_state

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        signs = current()
        if signs is None:
            return original(*args, **kwargs)
        signs.trying += 1
        try:
            return original(*args, **kwargs)
        finally:
            signs.trying -= 1

    module._init_optim_state = init


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

        from headway.runner.boot.dcp import writer_for  # noqa: PLC0415

        given = signature.bind(*args, **kwargs).arguments
        with in_section("save"):
            ours = carefully(writer_for, **given)
            if ours is None:
                return original(*args, **kwargs)
            try:
                return original(**{**given, "storage_writer": ours})
            except CheckpointException as error:  # all ranks have it, so all of them turn back
                unseen(f"dcp.save to {ours.path}: torch saved it, unverified: {_first(error)}")
                return original(*args, **kwargs)

    return save


def _loading(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> None:
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

        from headway.runner.boot.dcp import reader_for  # noqa: PLC0415
        from headway.runner.checkpoint.format import RefusedError  # noqa: PLC0415

        given = signature.bind(*args, **kwargs).arguments
        with in_section("restore"):
            ours = carefully(reader_for, given["storage_reader"])
            if ours is None:
                return original(*args, **kwargs)
            try:
                return original(**{**given, "storage_reader": ours})
            except CheckpointException as error:
                refused = next((reason for reason, _ in error.failures.values() if isinstance(reason, RefusedError)), None)
                if refused is not None and refused.unread is None:
                    carefully(saved.refuse, ours.path, str(refused))
                raise

    return load


def _first(error: Any) -> str:
    """The first rank's reason of a CheckpointException, in a line."""
    reason, _ = next(iter(error.failures.values()))
    return f"{type(reason).__name__}: {reason}".splitlines()[0]
