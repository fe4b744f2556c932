"""Tests that a custom loop resumes bit for bit as if uninterrupted: order, augmentation in workers, dropout, optimizer."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headway.runner.checkpoint.objects import decode, encode
from headway.runner.checkpoint.rng import RandomState, kept_generators, seed_all
from headway.runner.train.loader import PerRank, Sample, Samples, Seeded
from headway.runner.train.state import Consumed

SIZE, WIDTH, BATCH = 24, 6, 4


class Augmented(Dataset[torch.Tensor]):
    """Samples with noise from all three generators, as third-party datasets draw it."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, number: int) -> torch.Tensor:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return torch.full((WIDTH,), number / SIZE) + noise


class Numbered(Dataset[torch.Tensor]):
    """Takes a `Sample` and ignores its seed, so that augmentation depends on the worker."""

    def __getitem__(self, sample: Sample) -> torch.Tensor:
        return Augmented()[sample.number]


class Loop:
    """An ordinary training loop, with everything that a resumed one needs in `state`."""

    def __init__(self, workers: int, data: Dataset[torch.Tensor]) -> None:
        self.samples = Samples(SIZE, batch=BATCH, seed=3)
        self.loader = DataLoader(data, batch_sampler=self.samples, num_workers=workers)
        self.model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "samples": self.samples,
            "random": RandomState(),
        }

    def train(self, steps: int) -> str:
        """The hash of all parameters after this many steps."""
        batches = self.samples.follow(self.loader)
        for _, batch in zip(range(steps), batches, strict=False):
            loss = self.model(batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return xxhash.xxh3_128_hexdigest(b"".join(p.detach().numpy().tobytes() for p in self.model.parameters()))


def hashes(workers: int, data: Dataset[torch.Tensor]) -> tuple[str, str]:
    """The end of an uninterrupted run, and of one that was interrupted and resumed in another loop."""
    seed_all(1, 0)
    whole = Loop(workers, data).train(7)
    seed_all(1, 0)
    first = Loop(workers, data)
    first.train(3)
    saved = {name: part.state_dict() for name, part in first.state.items()}
    seed_all(99, 0)
    second = Loop(workers, data)
    for name, part in second.state.items():
        part.load_state_dict(saved[name])
    return whole, second.train(4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_loop_ends_bit_for_bit_like_an_uninterrupted_one(workers: int) -> None:
    whole, resumed = hashes(workers, Seeded(Augmented()))
    assert resumed == whole


@pytest.mark.slow
def test_without_a_separate_seed_a_sample_differs_after_a_resume() -> None:
    whole, resumed = hashes(2, Numbered())
    assert resumed != whole


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing() -> None:
    assert len({hashes(workers, Seeded(Augmented()))[0] for workers in (0, 1, 2)}) == 1


# --- the order --------------------------------------------------------------------------------------------------------


def numbers(samples: Samples, batches: int) -> list[int]:
    return [sample.number for batch, _ in zip(samples, range(batches), strict=False) for sample in batch]


def test_an_epoch_has_every_sample_once_and_the_next_one_in_another_order() -> None:
    samples = Samples(SIZE, batch=BATCH, seed=5)
    epochs = numbers(samples, 2 * SIZE // BATCH)
    assert Counter(epochs) == dict.fromkeys(range(SIZE), 2)
    assert epochs[:SIZE] != epochs[SIZE:]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 6]), st.integers(0, 1000), st.integers(0, 5))
def test_any_number_of_ranks_shares_each_batch(world_size: int, seed: int, skipped: int) -> None:
    alone = Samples(17, batch=12, seed=seed)
    alone.skip(skipped)
    expected = [sample for batch, _ in zip(alone, range(4), strict=False) for sample in batch]
    shares = []
    for rank in range(world_size):
        of_rank = Samples(17, batch=12, seed=seed, rank=rank, world_size=world_size)
        of_rank.load_state_dict(alone.state_dict())
        shares.append([batch for batch, _ in zip(of_rank, range(4), strict=False)])
    assert [sample for step in range(4) for share in shares for sample in share[step]] == expected


def test_a_sample_is_augmented_differently_when_it_is_drawn_again() -> None:
    samples = Samples(3, batch=3, seed=5)
    twice = [sample for batch, _ in zip(samples, range(2), strict=False) for sample in batch]
    assert len({sample.seed for sample in twice}) == 6


def test_prefetched_batches_do_not_count() -> None:
    samples = Samples(SIZE, batch=BATCH)
    data: Seeded[torch.Tensor] = Seeded(Augmented())
    loader = DataLoader(data, batch_sampler=samples, num_workers=1, prefetch_factor=4)
    batches = samples.follow(loader)
    next(batches)
    next(batches)
    assert samples.position == 2 * BATCH


def test_a_state_of_other_samples_or_another_seed_is_refused() -> None:
    state = Samples(SIZE, batch=BATCH, seed=1).state_dict()
    for other in (Samples(SIZE + 1, batch=BATCH, seed=1), Samples(SIZE, batch=BATCH, seed=2)):
        with pytest.raises(ValueError, match="differs from the one that was trained on"):
            other.load_state_dict(state)
    Samples(SIZE, batch=2 * BATCH, seed=1).load_state_dict(state)


@pytest.mark.parametrize(("size", "batch", "world_size"), [(0, 4, 1), (8, 0, 1), (8, 6, 4)])
def test_a_batch_that_cannot_be_divided_is_refused(size: int, batch: int, world_size: int) -> None:
    with pytest.raises(ValueError, match=f"{batch} of {size} samples cannot be split evenly over {world_size} ranks"):
        Samples(size, batch=batch, rank=0, world_size=world_size)


# --- generators -------------------------------------------------------------------------------------------------------


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_draws_inside_change_nothing_outside() -> None:
    seed_all(4, 0)
    expected = drawn()
    seed_all(4, 0)
    with kept_generators():
        drawn()
    assert drawn() == expected


def test_generators_continue_per_rank_and_differ_at_another_world_size() -> None:
    seed_all(4, 0)
    state = decode(encode(RandomState(0, 2).state_dict()))
    expected = drawn()
    RandomState(0, 2).load_state_dict(state)
    assert drawn() == expected
    found = []
    for rank in (0, 1, 2, 0):
        RandomState(rank, 3).load_state_dict(state)
        found.append(drawn())
    assert found[0] == found[3]
    assert len({*found, expected}) == 4


# --- stateful objects -------------------------------------------------------------------------------------------------


class Counting:
    """A loader with its own state."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "seen": [3, (torch.arange(4), None)],
            "workers": {7: torch.tensor([1.5], dtype=torch.bfloat16)},
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_ranks_own_state_is_restored_to_it_including_tensors() -> None:
    saved = decode(encode(PerRank(Counting(), 1, 2).state_dict()))
    inner = Counting()
    inner.state = {}
    PerRank(inner, 1, 2).load_state_dict(saved)
    assert inner.state.keys() == {"seen", "workers"}
    assert inner.state["seen"][0] == 3
    assert torch.equal(inner.state["seen"][1][0], torch.arange(4))
    assert torch.equal(inner.state["workers"][7], torch.tensor([1.5], dtype=torch.bfloat16))


@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (1, 4)])
def test_a_ranks_own_state_is_not_restored_to_another_rank(rank: int, world_size: int) -> None:
    saved = PerRank(Counting(), 1, 2).state_dict()
    with pytest.raises(ValueError, match=f"a Counting of rank 1 of 2 cannot resume as rank {rank} of {world_size}"):
        PerRank(Counting(), rank, world_size).load_state_dict(saved)


# torch 2.13 warns about a call in torchdata 0.11.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_resumes_where_it_was() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")

    def loader() -> Any:
        return torchdata.StatefulDataLoader(list(range(SIZE)), batch_size=BATCH, shuffle=True)

    seed_all(2, 0)
    first = loader()
    whole = [batch.tolist() for batch in first]
    seed_all(2, 0)
    interrupted = loader()
    begun = [batch.tolist() for _, batch in zip(range(3), interrupted, strict=False)]
    saved = decode(encode(PerRank(interrupted).state_dict()))
    again = loader()
    PerRank(again).load_state_dict(saved)
    assert begun + [batch.tolist() for batch in again] == whole


def test_consumption_is_independent_of_order_and_continues_from_a_state() -> None:
    tokens = [torch.tensor([number, 7]) for number in range(6)]
    forward, backward = Consumed(), Consumed()
    for position in range(6):
        forward.take(position, tokens[position])
        backward.take(5 - position, tokens[5 - position])
    assert forward.state_dict() == backward.state_dict()
    first, second = Consumed(), Consumed()
    for position in range(3):
        first.take(position, tokens[position])
    second.load_state_dict(decode(encode(first.state_dict())))
    for position in range(3, 6):
        second.take(position, tokens[position])
    assert second.state_dict() == forward.state_dict()
    swapped = Consumed()
    for position in range(6):
        swapped.take(position, tokens[position ^ 1])
    assert swapped.state_dict()["digest"] != forward.digest
