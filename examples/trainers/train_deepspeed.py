"""DeepSpeed's engine on sequences that count upwards. The JSON comes from the job; steps and saves are the script's."""

import argparse

import deepspeed
import torch
from torch.nn import functional


def main() -> None:
    """Trains, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--seed", type=int, required=True)
    for size in ("vocab-size", "hidden", "sequence"):
        parser.add_argument(f"--{size}", type=int, required=True)
    given = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(given.seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(given.vocab_size, given.hidden), torch.nn.Linear(given.hidden, given.vocab_size)
    )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=given.deepspeed_config)
    # It follows the file `latest`; without one it returns no path.
    engine.load_checkpoint(given.checkpoints)
    micro = engine.train_micro_batch_size_per_gpu()
    while engine.global_steps < given.steps:
        first = torch.randint(given.vocab_size, (micro, 1), device=engine.device)
        tokens = (first + torch.arange(given.sequence + 1, device=engine.device)) % given.vocab_size
        loss = functional.cross_entropy(engine(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        is_last = engine.is_gradient_accumulation_boundary()
        engine.backward(loss)
        engine.step()
        if is_last and engine.global_steps % given.save_every == 0:
            engine.save_checkpoint(given.checkpoints)


if __name__ == "__main__":
    main()
