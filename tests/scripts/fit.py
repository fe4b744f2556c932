"""A LightningModule in the manner of its examples: a checkpoint every few steps and one named last, with its own resume."""

import argparse
import hashlib
import logging
import os
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regression(lightning.LightningModule):
    """The sum of squares, from points."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        points, sums = batch
        return functional.mse_loss(self.layers(points), sums)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--output", required=True)
    given = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    points = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(points, points.pow(2).sum(1, keepdim=True)), batch_size=4, shuffle=False)
    model = Regression()
    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(given.output, every_n_train_steps=given.save_every, save_last=True, save_top_k=-1)],
    )
    trainer.fit(model, loader, ckpt_path="last")
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()[:16]
    if trainer.is_global_zero:
        print(f"finished step {trainer.global_step} parameters {digest}", flush=True)


if __name__ == "__main__":
    main()
