"""Loaders with workers of every kind, tensors that are shared by every strategy, and what is left in shared memory."""

import os

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index))


class Stream(IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        info = get_worker_info()
        yield from range(info.id if info else 0, 8, info.num_workers if info else 1)


def double(tensor: torch.Tensor, done) -> None:  # type: ignore[no-untyped-def]
    tensor.mul_(2)
    done.set()


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = DataLoader(
            Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=method == "spawn"
        )
        print(method, [batch.sum().item() for batch in loader], flush=True)
    print(
        sorted(number.item() for number in DataLoader(Stream(), num_workers=2, batch_size=None, collate_fn=torch.as_tensor)),
        flush=True,
    )
    for strategy in ("file_descriptor", "file_system"):
        mp.set_sharing_strategy(strategy)
        shared = torch.ones(10).share_memory_()
        context = mp.get_context("spawn")
        done = context.Event()
        child = context.Process(target=double, args=(shared, done))
        child.start()
        child.join()
        print(strategy, done.is_set(), shared.sum().item(), flush=True)
    iterator = iter(DataLoader(Numbers(), num_workers=2))
    next(iterator)  # and the rest is never asked for
    print("ends with workers", os.environ["RANK"], flush=True)
