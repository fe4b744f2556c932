"""Anybody's state -> tensors and plain objects by name, and back: modules, optimizers, whatever has state_dict(), nested dicts and lists.

Names and values are those of torch.distributed.checkpoint's own state dicts, so optimizer state goes by parameter names and not by
numbers, and is the same under every layout.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

_SEPARATOR = "/"
# A parameter that an optimizer does not train has no state there, and a tied one is named once.
_OPTIONS = StateDictOptions(strict=True)


class StateError(TypeError):
    """A state cannot be saved, or what was saved does not fit it; the message names where."""


def state_dict(state: Mapping[str, Any]) -> dict[str, Any]:
    """The values that `state` stands for: what has a state_dict() is replaced by it. Tensors are not copied."""
    models = {id(value): value for value in state.values() if isinstance(value, nn.Module)}
    return {name: _value(value, list(models.values())) for name, value in state.items()}


def _value(value: Any, models: list[nn.Module]) -> Any:
    if isinstance(value, nn.Module):
        return get_model_state_dict(value)
    if isinstance(value, torch.optim.Optimizer):
        model = _trained_by(value, models)
        return value.state_dict() if model is None else get_optimizer_state_dict(model, value)
    if isinstance(value, Mapping):
        return {name: _value(item, models) for name, item in value.items()}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    return value


def _trained_by(optimizer: torch.optim.Optimizer, models: list[nn.Module]) -> nn.Module | None:
    """The module whose parameters the optimizer trains; None if it stands alone, and its state then goes by numbers."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return next((model for model in models if wanted <= {id(parameter) for parameter in model.parameters()}), None)


def load_state_dict(state: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Puts `values` into what has a load_state_dict(), in order; returns those of plain values, which the caller keeps himself."""
    models = [value for value in state.values() if isinstance(value, nn.Module)]
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, nn.Module):
            set_model_state_dict(value, values[name], options=_OPTIONS)
        elif isinstance(value, torch.optim.Optimizer):
            _load_optimizer(value, _trained_by(value, models), values[name])
        elif not isinstance(value, Mapping) and hasattr(value, "load_state_dict"):
            value.load_state_dict(values[name])
        elif isinstance(value, Mapping):
            plain[name] = load_state_dict(value, values[name])
        else:
            plain[name] = values[name]
    return plain


def _load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module | None, values: dict[str, Any]) -> None:
    if model is None:
        optimizer.load_state_dict(values)
    else:
        set_optimizer_state_dict(model, optimizer, values, options=_OPTIONS)


# --- nested values by path --------------------------------------------------------------------------------------------


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values by their path: keys of dicts and indices of lists, joined by "/". What holds no tensor is one value,
    so that its shape may be another when it is loaded."""
    if isinstance(value, torch.Tensor) or not _holds_tensors(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, _join(path, _key(key, path)))
    else:
        for index, item in enumerate(value):
            yield from flatten(item, _join(path, f"[{index}]"))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensors(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensors(item) for item in value)
    return isinstance(value, torch.Tensor)


def _join(path: str, key: str) -> str:
    return f"{path}{_SEPARATOR}{key}" if path else key


def _key(key: Any, path: str) -> str:
    """Keys that are numbers keep their kind, so that they come back as numbers."""
    if isinstance(key, str) and not key.startswith("#") and not key.startswith("["):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    raise StateError(f"`{path}` has a key {key!r}: keys are texts that do not begin with # or [, or whole numbers")


def unflatten(template: Any, leaves: Mapping[str, Any], path: str = "") -> Any:
    """`template` with its leaves replaced by those of `leaves`. Raises StateError for one that is missing, by name."""
    if _holds_tensors(template) and not isinstance(template, torch.Tensor):
        if isinstance(template, Mapping):
            return {key: unflatten(item, leaves, _join(path, _key(key, path))) for key, item in template.items()}
        return type(template)(unflatten(item, leaves, _join(path, f"[{index}]")) for index, item in enumerate(template))
    if path not in leaves:
        raise StateError(f"`{path}` is not in the checkpoint")
    return leaves[path]
