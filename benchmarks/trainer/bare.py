"""Trains the benchmark's model as a bare FSDP2 loop does. Each step's loss is read, and that is all.

The model, its kernels, the batch and the optimizer are the builtin trainer's; the loop is that of PyTorch's FSDP2 tutorial, with the
gradients clipped by `clip_grad_norm_`. It neither saves, nor resumes, nor watches anything.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.trainer.jobs import LR, MICRO, MODEL, ROUNDS, SEQUENCE
from benchmarks.trainer.turns import Alternation
from headway.runner.train.model import Transformer, initialize


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer(MODEL)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    initialize(model, MODEL, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    draw = torch.Generator().manual_seed(dist.get_rank())
    corpus = torch.randint(0, MODEL.vocab_size, (1 << 20,), generator=draw)
    alternation = Alternation.of(os.environ)
    while True:
        alternation.before_step()
        total = torch.zeros(())
        for _ in range(ROUNDS):
            begins = torch.randint(0, len(corpus) - SEQUENCE - 1, (MICRO,), generator=draw).tolist()
            tokens = torch.stack([corpus[begin : begin + SEQUENCE + 1] for begin in begins])
            loss = model(tokens[:, :-1], tokens[:, 1:]) / ROUNDS
            torch.autograd.backward(loss)
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(total)


if __name__ == "__main__":
    main()
