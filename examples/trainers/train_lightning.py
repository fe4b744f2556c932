"""A LightningCLI on sums of squares. Its configuration comes from the job; the module keeps the optimizer of the CLI."""

import hashlib

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """The sum of squares, from points of `inputs` coordinates."""

    def __init__(self, inputs: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Returns the mean squared error."""
        points, sums = batch
        loss: torch.Tensor = functional.mse_loss(self.layers(points), sums)
        return loss

    def on_train_end(self) -> None:
        """Prints what the run ends with."""
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in self.state_dict().values())).hexdigest()[:16]
        if self.trainer.is_global_zero:
            print(f"finished step {self.trainer.global_step} parameters {digest}", flush=True)


class Points(lightning.LightningDataModule):
    """Random points, the same in every run."""

    def __init__(self, batch_size: int, inputs: int = 8) -> None:
        super().__init__()
        self.batch_size, self.inputs = batch_size, inputs

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Returns 256 points in their order."""
        points = torch.randn(256, self.inputs, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(points, points.pow(2).sum(1, keepdim=True)), batch_size=self.batch_size)


if __name__ == "__main__":
    # The job has the configuration; the CLI would refuse to start again where it has saved it once.
    LightningCLI(Regression, Points, save_config_callback=None)
