"""Provides samples to any DataLoader with exact resume: order and randomness follow from seed and position."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
import xxhash
from torch.utils.data import Dataset, Sampler

from headway.runner.checkpoint.rng import kept_generators, seed_all
from headway.runner.checkpoint.tensors import dtype_name, dtype_named, from_bytes, to_bytes
from headway.runner.train.sampler import sample_at

T = TypeVar("T")
# Replaces a tensor in a state: a checkpoint would give the tensor to another rank if the number of ranks has changed.
_TENSOR = "!tensor"


class Sample(NamedTuple):
    """The index of a sample in the dataset, and the seed of everything drawn for it."""

    number: int
    seed: int


@runtime_checkable
class Stateful(Protocol):
    """Has state_dict() and load_state_dict()."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Samples(Sampler[list[Sample]]):
    """The endless order of a run's samples: each epoch holds every sample once. The batch sampler of a DataLoader over `Seeded` data.

        samples = Samples(len(dataset), batch=64, seed=1)
        loader = DataLoader(Seeded(dataset), batch_sampler=samples, num_workers=2)
        for batch in samples.follow(loader): ...

    Its state is the position in the order: the same for every rank, whatever their number, and however far workers have read ahead.
    """

    def __init__(self, size: int, *, batch: int, seed: int = 0, rank: int | None = None, world_size: int | None = None) -> None:
        """Take `size` samples, `batch` of them at a time over all ranks, which are those of torch.distributed when
        omitted.

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
        """How often the dataset was read completely."""
        return self.position // self.size

    def __iter__(self) -> Iterator[list[Sample]]:
        """Yield this rank's share of each batch, from the position on."""
        share = self.batch // self.world_size
        first = self.position + self.rank * share
        while True:
            yield [self._sample(place) for place in range(first, first + share)]
            first += self.batch

    def follow(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches. A yielded one counts as trained on: save after its step."""
        # A DataLoader draws the seed of its workers when it begins; a resumed one would draw it once more.
        with kept_generators():
            batches = iter(loader)
        for batch in batches:
            self.position += self.batch
            yield batch

    def skip(self, count: int) -> None:
        """Skip the next `count` samples; call it before `follow`."""
        self.position += count

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "digest": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the state's position, with the next `follow`. Raises ValueError for the state of other data or
        another seed."""
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
    """A map-style dataset indexed by `Sample`: everything that it draws from Python, NumPy or torch follows from the
    sample's seed.

    So a sample is the same in every worker process, also after a resume, and training's own generators are unaffected.
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
    """The state of an object that resumes only on the same rank and with the same number of ranks: torchdata's
    StatefulDataLoader.

    Its tensors are this rank's own and no part of the model: they are held as bytes.
    """

    def __init__(self, inner: Stateful, rank: int = 0, world_size: int = 1) -> None:
        self._inner, self._rank, self._world_size = inner, rank, world_size

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self._rank, "world_size": self._world_size, "state": _without_tensors(self._inner.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state. Raises ValueError for that of another rank, or of another number of ranks."""
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
