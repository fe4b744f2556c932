"""Provides samples to any DataLoader with exact resume: order and randomness follow from seed and position."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
import xxhash
from torch.utils.data import Dataset, Sampler

from headway.runner.checkpoint.tensors import dtype_name, dtype_named, from_bytes, to_bytes
from headway.runner.train.rng import kept_generators, seed_all
from headway.runner.train.sampler import sample_at

T = TypeVar("T")
# Stands in a state for a tensor, which a checkpoint would give to another rank where their number has changed.
_TENSOR = "!tensor"


class Sample(NamedTuple):
    """Which sample of the dataset, and the seed of all that is drawn for it."""

    number: int
    seed: int


@runtime_checkable
class Stateful(Protocol):
    """What can say its state and take it back."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Samples(Sampler[list[Sample]]):
    """The endless order of a run's samples: each epoch holds every sample once. The batch sampler of a DataLoader over `Seeded` data.

        samples = Samples(len(dataset), batch=64, seed=1)
        loader = DataLoader(Seeded(dataset), batch_sampler=samples, num_workers=2)
        for batch in samples.follow(loader): ...

    A state of it is its place in the order: the same for every rank, whatever their number, and however far workers have read ahead.
    """

    def __init__(self, size: int, *, batch: int, seed: int = 0, rank: int | None = None, world_size: int | None = None) -> None:
        """`size` samples, `batch` of them at a time over all ranks, which are those of torch.distributed when left out.

        Raises ValueError when there is no sample, or when the ranks cannot share a batch evenly.
        """
        initialized = dist.is_available() and dist.is_initialized()
        self.rank = (dist.get_rank() if initialized else 0) if rank is None else rank
        self.world_size = (dist.get_world_size() if initialized else 1) if world_size is None else world_size
        if size < 1 or batch < 1 or batch % self.world_size:
            raise ValueError(f"a batch of {batch} of {size} samples cannot be split evenly over {self.world_size} ranks")
        self.size, self.batch, self.seed = size, batch, seed
        self.position = 0

    @property
    def epoch(self) -> int:
        """How often the dataset was read whole."""
        return self.position // self.size

    def __iter__(self) -> Iterator[list[Sample]]:
        """This rank's share of each batch, from the position on."""
        share = self.batch // self.world_size
        first = self.position + self.rank * share
        while True:
            yield [self._sample(place) for place in range(first, first + share)]
            first += self.batch

    def follow(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches. One that is handed out counts as trained on: save after the step that it was for."""
        with (
            kept_generators()
        ):  # a DataLoader draws the seed of its workers when it begins; a resumed one would draw it once more
            batches = iter(loader)
        for batch in batches:
            self.position += self.batch
            yield batch

    def skip(self, count: int) -> None:
        """Leaves the next `count` samples out; to be called before `follow`."""
        self.position += count

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "digest": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on at the state's place, with the next `follow`. Raises ValueError when it is of other data or another seed."""
        if state["digest"] != self._digest():
            own = f"{self.size} samples by seed {self.seed}"
            raise ValueError(f"the order of {own} differs from the one that was trained on: their number or the seed has changed")
        self.position = state["position"]

    def _sample(self, place: int) -> Sample:
        number = sample_at(place, self.size, self.seed)
        return Sample(number, xxhash.xxh3_64_intdigest(b"sample/%d/%d" % (self.seed, place)))

    def _digest(self) -> str:
        begin = [sample_at(place, self.size, self.seed) for place in range(8)]
        return xxhash.xxh3_128_hexdigest(f"{self.size}/{self.seed}/{begin}".encode())


class Seeded(Dataset[T]):
    """A map-style dataset by `Sample`: all that it draws from Python, NumPy or torch for a sample follows from the sample's seed.

    So it is the same in whichever worker process, also after a resume, and training's own generators go on as if nothing were drawn.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        if not isinstance(self._dataset, Sized):
            raise TypeError(f"{type(self._dataset).__name__} has no length: only a map-style dataset has numbered samples")
        return len(self._dataset)

    def __getitem__(self, sample: Sample) -> T:
        with kept_generators():
            seed_all(sample.seed, 0)
            found: T = self._dataset[sample.number]
        return found


class PerRank:
    """The state of something that goes on only on the rank and among as many ranks as it was saved on: torchdata's StatefulDataLoader.

    Its tensors are this rank's own and no part of the model: they are held as bytes.
    """

    def __init__(self, inner: Stateful, rank: int = 0, world_size: int = 1) -> None:
        self._inner, self._rank, self._world_size = inner, rank, world_size

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self._rank, "world_size": self._world_size, "state": _without_tensors(self._inner.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for the state of another rank, or of another number of ranks."""
        found, own = (state["rank"], state["world_size"]), (self._rank, self._world_size)
        if found != own:
            raise ValueError(
                f"a {type(self._inner).__name__} of rank {found[0]} of {found[1]} cannot resume as rank {own[0]} of "
                f"{own[1]}; use `Samples`, which resumes on any number of ranks"
            )
        self._inner.load_state_dict(_with_tensors(state["state"]))


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {_TENSOR: (dtype_name(value.dtype), tuple(value.shape), bytes(to_bytes(value)))}
    if isinstance(value, dict):
        return {key: _without_tensors(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(item) for item in value)
    return value


def _with_tensors(value: Any) -> Any:
    if isinstance(value, dict) and _TENSOR in value:
        dtype, shape, raw = value[_TENSOR]
        return from_bytes(memoryview(bytearray(raw)), dtype_named(dtype), tuple(shape))
    if isinstance(value, dict):
        return {key: _with_tensors(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(item) for item in value)
    return value
