"""A Hugging Face Trainer on sequences that count upwards. The file of arguments is the first word, as in transformers' own examples."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    """The sizes of the model, and the length of its sequences."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    block_size: int


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards, each from another token."""

    def __init__(self, sizes: ModelArguments) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(self.sizes.block_size) + index) % self.sizes.vocab_size
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Trains, from the newest checkpoint if there is one."""
    sizes: ModelArguments
    arguments: TrainingArguments
    sizes, arguments = HfArgumentParser((ModelArguments, TrainingArguments)).parse_json_file(sys.argv[1])  # type: ignore[arg-type]
    set_seed(arguments.seed)
    config = LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn_hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=sizes.block_size,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Counting(sizes))
    folder = str(arguments.output_dir)
    last = get_last_checkpoint(folder) if Path(folder).is_dir() else None  # type: ignore[no-untyped-call]
    trainer.train(resume_from_checkpoint=last)
    state = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()[:16]
    if trainer.is_world_process_zero():
        print(f"finished step {trainer.state.global_step} parameters {digest}", flush=True)


if __name__ == "__main__":
    main()
