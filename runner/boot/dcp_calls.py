"""Hooks torch.distributed.checkpoint: every save and every load passes through one function each, under any imported name.

Planners and arguments stay unchanged. This imports nothing of torch: it is itself imported while torch is.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.runner.boot import saved
from headway.runner.boot.heartbeat import current, in_section, within
from headway.runner.boot.limitations import note_limitation, suppress_errors


def hook_saver(module: Any) -> None:
    """Hook torch.distributed.checkpoint.state_dict_saver."""
    module._save_state_dict = _saving(module._save_state_dict)
    module.async_save = within("save", module.async_save)


def hook_loader(module: Any) -> None:
    """Hook torch.distributed.checkpoint.state_dict_loader."""
    module._load_state_dict = _loading(module._load_state_dict)


def hook_state_dict(module: Any) -> None:
    """Hook torch.distributed.checkpoint.state_dict: it steps an optimizer that has no state yet; that is not a training step."""
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


def hook_filesystem(module: Any) -> None:
    """Hook torch.distributed.checkpoint.filesystem: verify what it is about to read; all ranks get damage as a failed read."""
    for name, look in (("read_data", _damage_of_reads), ("read_metadata", _damage_of_metadata)):
        setattr(module.FileSystemReader, name, _reading(getattr(module.FileSystemReader, name), look))


def _reading(original: Callable[..., Any], look: Callable[..., Exception | None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(reader: Any, *args: Any, **kwargs: Any) -> Any:
        if (error := suppress_errors(look, reader, *args, **kwargs)) is not None:
            raise error
        return original(reader, *args, **kwargs)

    return read


def _damage_of_reads(reader: Any, plan: Any, *_: Any, **__: Any) -> Exception | None:
    from headway.runner.boot.dcp import damage_of_reads  # noqa: PLC0415

    return damage_of_reads(reader, plan)


def _damage_of_metadata(reader: Any, *_: Any, **__: Any) -> Exception | None:
    from headway.runner.boot.dcp import damage_of_metadata  # noqa: PLC0415

    return damage_of_metadata(reader)


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

        from headway.runner.boot.dcp import saved_by, saving_of, writer_for  # noqa: PLC0415

        given = signature.bind(*args, **kwargs).arguments
        with in_section("save"):
            if (ours := suppress_errors(writer_for, **given)) is not None:
                try:
                    return original(**{**given, "storage_writer": ours})
                except CheckpointException as error:
                    # All ranks get it, so all of them turn back.
                    note_limitation(f"dcp.save to {ours.path}: torch saved it: {_first(error)}")
            saving = suppress_errors(saving_of, **given)
            metadata = original(*args, **kwargs)
            if saving is not None:
                suppress_errors(saved_by, saving, metadata)
            return metadata

    return save


def _loading(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> None:
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

        from headway.runner.boot.dcp import reader_for  # noqa: PLC0415
        from headway.runner.checkpoint.format import RefusedError  # noqa: PLC0415

        given = signature.bind(*args, **kwargs).arguments
        reader = given["storage_reader"]
        with in_section("restore"):
            ours = suppress_errors(reader_for, reader)
            try:
                return original(*args, **kwargs) if ours is None else original(**{**given, "storage_reader": ours})
            except CheckpointException as error:
                for reason, _ in error.failures.values():
                    if isinstance(reason, saved.DamagedFileError) or (isinstance(reason, RefusedError) and reason.unread is None):
                        suppress_errors(saved.refuse, Path((ours or reader).path).absolute(), str(reason))
                        break
                raise

    return load


def _first(error: Any) -> str:
    """Return the first rank's reason of a CheckpointException, in a line."""
    reason, _ = next(iter(error.failures.values()))
    return f"{type(reason).__name__}: {reason}".splitlines()[0]
