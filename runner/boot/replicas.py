"""Finds what several ranks hold identically (parameters, optimizer state), and computes a checksum per kind and set of ranks.

A DTensor's placement gives the other holders of its elements. A plain parameter has replicas if it belongs to a module
of torch's DistributedDataParallel, and its optimizer state with it. All other state has no known replica.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.tensor import DTensor

from headway.runner.boot.limitations import suppress_errors
from headway.runner.boot.replica_report import PARAMETERS, Sum
from headway.runner.checkpoint.tensors import LocalTensor, local_tensor, to_bytes

# Elements copied from a device at once.
_PIECE = 1 << 24
# Hooks after which each rank has its own gradients, for a while or forever
# (torch.distributed.algorithms.ddp_comm_hooks).
_LOCAL_HOOKS = frozenset({"noop_hook", "post_localSGD_hook"})


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


class _Module:
    """The parameters that one module keeps equal, and whether the gradients of its last forward pass are averaged."""

    def __init__(self, parameters: frozenset[int]) -> None:
        self.parameters, self.averages = parameters, True


# Entries live as long as their module, and with it its parameters. Those are identified by id: torch.utils.swap_tensors
# refuses a tensor that has any references.
_modules: "weakref.WeakKeyDictionary[Any, _Module]" = weakref.WeakKeyDictionary()


def see_ddp(module: Any) -> None:
    """Hook torch.nn.parallel.distributed: record its modules, with the parameters whose gradients they average."""
    original, after_forward = module.DistributedDataParallel.__init__, module.DistributedDataParallel._post_forward

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        suppress_errors(_remember, self)

    @functools.wraps(after_forward)
    def post_forward(self: Any, output: Any) -> Any:
        # A pass without gradients proves nothing about those of the next step.
        if torch.is_grad_enabled() and self in _modules:
            _modules[self].averages = self.require_backward_grad_sync
        return after_forward(self, output)

    module.DistributedDataParallel.__init__, module.DistributedDataParallel._post_forward = init, post_forward


def _remember(module: Any) -> None:
    """Record a module's parameters, except ignored ones and those frozen at its creation, which it never averages."""
    _modules[module] = _Module(frozenset(id(parameter) for parameter in module._module_parameters if parameter.requires_grad))


def stepped_alone(optimizer: Any) -> bool:
    """Return whether the optimizer's last step had gradients of this rank alone: of a module under `no_sync`, or by its hook."""
    alone = [known.parameters for module, known in list(_modules.items()) if not known.averages or _has_local_hook(module)]
    stepped = (id(each) for group in optimizer.param_groups for each in group["params"]) if alone else ()
    return any(each in parameters for each in stepped for parameters in alone)


def _has_local_hook(module: Any) -> bool:
    return any(getattr(hook, "__name__", "") in _LOCAL_HOOKS for hook, _ in module._comm_hooks)


def _members() -> dict[int, tuple[int, ...]]:
    """Return the ranks that hold a parameter identically, by its id. A module whose process group was destroyed keeps
    nothing equal any more."""
    found: dict[int, tuple[int, ...]] = {}
    for module, known in list(_modules.items()):
        with contextlib.suppress(KeyError):
            found |= dict.fromkeys(known.parameters, tuple(sorted(dist.get_process_group_ranks(module.process_group))))
    return found


# --- what is held -----------------------------------------------------------------------------------------------------


def sums(optimizers: Iterable[Any], pulse: Callable[[], None]) -> list[Sum]:
    """Return the checksums of the optimizers' parameters, in order, and of their state of the same shapes. `pulse` is
    called for each tensor."""
    begun: dict[tuple[str, tuple[int, ...]], _Checksum] = {}
    for kind, local, ranks in _held(optimizers):
        begun.setdefault((kind, ranks), _Checksum()).add(local)
        pulse()
    return [Sum(kind, len(ranks), each.name(kind, ranks), each.digest()) for (kind, ranks), each in begun.items()]


class _Checksum:
    """A checksum of tensors' descriptions, in order, and of their content."""

    def __init__(self) -> None:
        self._what, self._bytes = xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, local: LocalTensor) -> None:
        self._what.update(f"{local.shape} {local.data.dtype} {local.box}\n".encode())
        for piece in torch.split(local.data.reshape(-1), _PIECE):
            self._bytes.update(to_bytes(piece))

    def name(self, kind: str, ranks: tuple[int, ...]) -> str:
        return xxhash.xxh3_128_hexdigest(f"{kind} {ranks} {self._what.hexdigest()}".encode())

    def digest(self) -> str:
        return self._bytes.hexdigest()


def _held(optimizers: Iterable[Any]) -> Iterator[tuple[str, LocalTensor, tuple[int, ...]]]:
    """Yield each tensor that other ranks hold too: its kind, this rank's elements, and the ranks."""
    members = _members()
    for kind, tensor, of in _tensors(optimizers):
        if (local := _local(tensor)) is not None:
            ranks = local.sharers or members.get(id(of), ())
            if len(ranks) > 1:
                yield kind, local, ranks


def _tensors(optimizers: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield parameters and the optimizer's state of the same shape, with the parameter.

    State of other shapes, such as row sums or counters, may be computed differently on each rank.
    """
    seen = set[int]()
    for optimizer in optimizers:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            yield PARAMETERS, parameter, parameter
            state = optimizer.state.get(parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    yield str(key), value, parameter


def _local(tensor: Any) -> LocalTensor | None:
    """Return this rank's elements; None for tensors without plain bytes: partial sums, sparse and quantized types,
    shapes without memory."""
    if not isinstance(tensor, DTensor) and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    try:
        local = local_tensor(tensor)
    except ValueError:
        return None
    plain = type(local.data) in (torch.Tensor, torch.nn.Parameter) and local.data.layout is torch.strided
    return local if plain and local.data.device.type != "meta" and not local.data.is_quantized else None
