"""Converts any state to tensors and plain objects by name, and back: modules, optimizers, state_dict() objects, dicts and lists.

Names and values are those of torch.distributed.checkpoint's own state dicts, so optimizer state goes by parameter names and not by
numbers, and is the same under every layout.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _init_optim_state,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

_SEPARATOR = "/"
_MODEL = StateDictOptions(strict=True)
# A parameter that never had a gradient has no state. `leave_out` decides whether missing state is legitimate.
_OPTIMIZER = StateDictOptions(strict=False)

T = TypeVar("T")


class StateError(TypeError):
    """A state cannot be saved, or does not match what was saved; the message names the path."""


def state_dict(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with each object that has a state_dict() replaced by it. Tensors are not copied."""
    models = list(_all_of(nn.Module, state))
    return {name: _value(value, models) for name, value in state.items()}


def _all_of(kind: type[T], state: Mapping[Any, Any]) -> Iterator[T]:
    """Yield the values of this type in `state`, including nested dicts."""
    for value in state.values():
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Mapping):
            yield from _all_of(kind, value)


def _value(value: Any, models: list[nn.Module]) -> Any:
    if isinstance(value, nn.Module):
        return get_model_state_dict(value)
    if isinstance(value, torch.optim.Optimizer):
        model = _trained_by(value, models)
        return value.state_dict() if model is None else _optimizer_values(model, value)
    if isinstance(value, Mapping):
        return {name: _value(item, models) for name, item in value.items()}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    return value


def _optimizer_values(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state by parameter names.

    For an optimizer without state and gradients torch would first take a step that counts (`_init_optim_state`).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or not parameters or any(parameter.grad is not None for parameter in parameters):
        return get_optimizer_state_dict(model, optimizer)
    parameters[0].grad = parameters[0].detach()
    try:
        return get_optimizer_state_dict(model, optimizer)
    finally:
        parameters[0].grad = None


def _trained_by(optimizer: torch.optim.Optimizer, models: list[nn.Module]) -> nn.Module | None:
    """Return the module whose parameters the optimizer trains; None if there is none: its state then uses numbers."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return next((model for model in models if wanted <= {id(parameter) for parameter in model.parameters()}), None)


def load_state_dict(state: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Load `values` into the objects that have a load_state_dict(), in order. Returns the plain values, which the
    caller stores."""
    return _load_values(state, values, list(_all_of(nn.Module, state)))


def _load_values(state: Mapping[str, Any], values: Mapping[str, Any], models: list[nn.Module]) -> dict[str, Any]:
    plain = {name: value for name, value in values.items() if name not in state}
    for name, value in state.items():
        if name not in values:
            raise StateError(f"`{name}` is not in the checkpoint")
        if isinstance(value, nn.Module):
            set_model_state_dict(value, values[name], options=_MODEL)
        elif isinstance(value, torch.optim.Optimizer):
            _load_optimizer(value, _trained_by(value, models), values[name])
        elif not isinstance(value, Mapping) and hasattr(value, "load_state_dict"):
            value.load_state_dict(values[name])
        elif isinstance(value, Mapping):
            plain[name] = {**_stateful(value), **_load_values(value, values[name], models)}
        else:
            plain[name] = values[name]
    return plain


def _stateful(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the objects that stay in place while values are loaded into them."""
    return {name: item for name, item in value.items() if hasattr(item, "load_state_dict")}


def _load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module | None, values: dict[str, Any]) -> None:
    if model is None:
        optimizer.load_state_dict(values)
    else:
        set_optimizer_state_dict(model, optimizer, values, options=_OPTIMIZER)


def changed_by_steps(state: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names of those `tensors` that only optimizer steps change: trained parameters and optimizer state.

    Only for optimizers whose steps run torch's hooks; others may change anything at any time.
    """
    optimizers = [each for each in _all_of(torch.optim.Optimizer, state) if getattr(type(each).step, "hooked", False)]
    trained = [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
    kept = [value for each in optimizers for own in each.state.values() for value in _tensors_in(own)]
    places = {_place(tensor) for tensor in (*trained, *kept)}
    return {name for name, tensor in tensors.items() if _place(tensor) in places}


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item)


def _place(tensor: torch.Tensor) -> tuple[torch.device, int, torch.Size]:
    """Return the device, address and shape of the elements in this process."""
    # to_local() takes 30 us each, by way of autograd.
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.device, local.data_ptr() if local.layout is torch.strided and not local.is_meta else id(local), local.shape


# --- optimizers that are new ------------------------------------------------------------------------------------------


@contextmanager
def started(state: Mapping[str, Any]) -> Iterator[None]:
    """Give each optimizer the state that its first step makes while inside; afterwards, remove it from those that had none."""
    new = start_optimizers(state)
    try:
        yield
    finally:
        for optimizer in new:
            optimizer.state.clear()


def start_optimizers(state: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    """Give each optimizer that has taken no step the state that its first one makes, to be filled. Gradients stay
    unchanged. Returns those optimizers."""
    new = [optimizer for optimizer in _all_of(torch.optim.Optimizer, state) if not optimizer.state]
    for optimizer in new:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            # With gradients torch would leave the state empty.
            parameter.grad = None
        _init_optim_state(optimizer)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    return new


def optimizers_in(state: Mapping[str, Any], values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path of each optimizer in `state`, with its part of `values`."""
    for name, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            yield _join(path, _key(name, path)), values[name]
        elif isinstance(value, Mapping) and next(_all_of(torch.optim.Optimizer, value), None) is not None:
            yield from optimizers_in(value, values[name], _join(path, _key(name, path)))


def moments(path: str, values: Mapping[str, Any]) -> dict[Any, set[str]]:
    """Return the names of an optimizer's tensors by parameter name or number."""
    at = _join(path, "state")
    return {
        parameter: {name for name, value in flatten(own, _join(at, _key(parameter, at))) if isinstance(value, torch.Tensor)}
        for parameter, own in values.get("state", {}).items()
    }


def leave_out(path: str, values: dict[str, Any], missing: Collection[str], saved: Mapping[str, Any]) -> None:
    """Remove from an optimizer's `values` the state of parameters that had none in `saved`: they never had a gradient.

    Raises StateError, by name, for anything else that is missing.
    """
    known = _parameters(path, saved)
    for parameter, names in moments(path, values).items():
        gone = names.intersection(missing)
        if gone and (gone != names or parameter not in known):
            raise StateError(f"tensor `{min(gone)}` is not in the checkpoint")
        if gone:
            del values["state"][parameter]


def _parameters(path: str, saved: Mapping[str, Any]) -> set[Any]:
    """Return the parameters of the saved optimizer. Its groups are one value, or more where they hold tensors."""
    groups = saved.get(path, {}).get("param_groups", saved.get(f"{path}/param_groups", ()))
    found = {parameter for group in groups for parameter in group["params"]}
    inside = (value for name, value in saved.items() if name.startswith(f"{path}/param_groups/[") and name.endswith("]/params"))
    return found.union(*inside)


# --- nested values by path --------------------------------------------------------------------------------------------


def leaves_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of `flatten`. Raises StateError for a path that two values share: one of them would be lost."""
    found: dict[str, Any] = {}
    for path, value in flatten(values):
        if path in found:
            raise StateError(f"two values of the state have the path `{path}`: use a key without / for one of them")
        found[path] = value
    return found


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield tensors and plain values by path: dict keys and list indices, joined by "/".

    A subtree without tensors is one value, so its structure may differ on load.
    """
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
    """Return a key's path component. Keys that are numbers keep their type."""
    if isinstance(key, str) and not key.startswith("#") and not key.startswith("["):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    raise StateError(f"`{path}` has a key {key!r}: keys must be integers, or text that does not start with # or [")


def unflatten(template: Any, leaves: Mapping[str, Any], path: str = "") -> Any:
    """Return `template` with its leaves replaced by those of `leaves`. Raises StateError, by name, for a missing one."""
    if _holds_tensors(template) and not isinstance(template, torch.Tensor):
        if isinstance(template, Mapping):
            return {key: unflatten(item, leaves, _join(path, _key(key, path))) for key, item in template.items()}
        return type(template)(unflatten(item, leaves, _join(path, f"[{index}]")) for index, item in enumerate(template))
    if path not in leaves:
        raise StateError(f"`{path}` is not in the checkpoint")
    return leaves[path]
