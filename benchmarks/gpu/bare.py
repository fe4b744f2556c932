"""Trains the benchmark's model as a bare FSDP2 loop does: it clips by `clip_grad_norm_` and reads each step's loss, and that is all.

bare.py FOLDER LAYERS ROUNDS MICRO SEQUENCE STEPS DETERMINISTIC, which is 1 if it uses deterministic algorithms, else 0
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from headway.runner.contract import Execution, Model
from headway.runner.train.model import Transformer, initialize


def main() -> None:
    folder, (layers, rounds, micro, sequence, steps, deterministic) = Path(sys.argv[1]), map(int, sys.argv[2:])
    torch.use_deterministic_algorithms(bool(deterministic))
    # As in the builtin trainer.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (1,))
    config = Model(vocab_size=32000, layers=layers, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, rope_theta=500000.0)
    with torch.device("meta"):
        model = Transformer(config, Execution(compile=True))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    initialize(model, config, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    corpus = torch.randint(0, 256, (1 << 22,), generator=torch.Generator().manual_seed(0))
    took: dict[int, float] = {}
    torch.cuda.synchronize()
    began = time.monotonic()
    for step in range(1, steps + 1):
        total = torch.zeros((), device="cuda")
        for index in range(rounds):
            begins = [
                ((step * rounds + index) * micro + place) * sequence % (len(corpus) - sequence - 1) for place in range(micro)
            ]
            tokens = torch.stack([corpus[begin : begin + sequence + 1] for begin in begins]).cuda()
            loss = model(tokens[:, :-1], tokens[:, 1:]) / rounds
            torch.autograd.backward(loss)
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(total)
        now = time.monotonic()
        took[step], began = now - began, now
    measured = {"steps": took, "device_bytes": torch.cuda.max_memory_allocated()}
    (folder / "measured.json").write_text(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
