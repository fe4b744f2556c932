"""A Hugging Face Trainer in the manner of its examples: a tiny model, a checkpoint every few steps, with its own resume."""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--output", required=True)
    given = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=given.output,
        max_steps=given.steps,
        per_device_train_batch_size=4,
        save_steps=given.save_every,
        save_total_limit=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=0,
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Counting())
    last = get_last_checkpoint(given.output) if Path(given.output).is_dir() else None
    print(f"from {last.rpartition('-')[2] if last else 'the beginning'}", flush=True)
    trainer.train(resume_from_checkpoint=last)
    state = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()[:16]
    if dist.get_rank() == 0:
        print(f"finished step {trainer.state.global_step} parameters {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
