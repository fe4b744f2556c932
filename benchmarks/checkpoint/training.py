"""Defines the training during which checkpoints are measured: a decoder and AdamW, sharded over two single-threaded ranks."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from headway.runner.contract import Model
from headway.runner.train.model import Transformer

# 43.6 million parameters: with AdamW's two moments 524 MB of float32 over all ranks.
MODEL = Model(vocab_size=256, layers=6, hidden=768, heads=12, kv_heads=12, ffn_hidden=2104)
_SEQUENCES, _TOKENS = 1, 16
_POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def _nothing() -> None:
    pass


class Training:
    """One rank of the training. Steps are collective, so all ranks are at the same step at the same time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rank, self.model = dist.get_rank(), _sharded(Transformer(MODEL))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.steps = 0
        self.step()

    def step(self, before_optimizer: Callable[[], None] = _nothing) -> float:
        """Forward, backward and optimizer; `before_optimizer` is called when the state is about to change. Returns seconds."""
        began = time.perf_counter()
        tokens = torch.randint(0, MODEL.vocab_size, (_SEQUENCES, _TOKENS + 1))
        logits = self.model(tokens[:, :-1])
        torch.autograd.backward(functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))
        before_optimizer()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return time.perf_counter() - began

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return all tensors of parameters and optimizer by name: references, made once, so that no way of saving pays
        for finding them."""
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        slots = {
            f"{names[parameter]}.{key}": value for parameter, slot in self.optimizer.state.items() for key, value in slot.items()
        }
        return {"model": {name: parameter.detach() for parameter, name in names.items()}, "optimizer": slots}


def _sharded(model: Transformer) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    for layer in model.blocks:
        fully_shard(layer, mesh=mesh, mp_policy=_POLICY, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=_POLICY, reshard_after_forward=False)
    return model


def everyone(flag: bool) -> bool:
    """Return whether `flag` is set on all ranks; collective."""
    flags = torch.tensor(int(flag))
    dist.all_reduce(flags, dist.ReduceOp.MIN)
    return bool(flags)


def slowest(seconds: float) -> float:
    """Return the longest time of all ranks; collective."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return float(times)
