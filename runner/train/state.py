"""Defines the state of a training run at one step: parameters, optimizer, random generators and consumed samples."""

from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import nn

from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.rng import restore_rng, rng_state, seed_all
from headway.runner.checkpoint.tensors import local_tensor, to_bytes
from headway.runner.train.corruption_state import CorruptionState

_MASK = (1 << 64) - 1


@dataclass
class Consumed:
    """The samples that this rank has trained on: their number, and a sum of hashes that depends on neither order nor
    world size."""

    position: int = 0
    digest: int = 0

    def take(self, position: int, tokens: torch.Tensor) -> None:
        """Record that the sample at `position` was trained on; its hash is over the tokens that were really used."""
        self.digest = (self.digest + xxhash.xxh3_64_intdigest(to_bytes(tokens), seed=position & _MASK)) & _MASK

    def total(self, ranks: Ranks) -> "Consumed":
        """Return the sum of all ranks; collective."""
        digests = ranks.gather(self.digest.to_bytes(8, "big"))
        return Consumed(self.position, sum(int.from_bytes(d, "big") for d in digests) & _MASK)

    def state_dict(self) -> dict[str, int]:
        """Return the sum of all ranks, for a custom loop; collective over torch.distributed's ranks."""
        total = self.total(Ranks.of_default_group())
        return {"position": total.position, "digest": total.digest}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from the sum of all ranks; the first rank gets all of it, whatever the number of ranks is now."""
        self.position = state["position"]
        self.digest = state["digest"] if Ranks.of_default_group().rank == 0 else 0


@dataclass
class TrainState:
    """Live references: saves read the training state, and loads fill it in place."""

    model: nn.Module
    optimizer: torch.optim.AdamW
    consumed: Consumed
    device: torch.device
    seed: int
    fingerprint: str
    step: int = 0
    # Only if steps are checked against silent corruption.
    soundness: CorruptionState | None = None

    def parameters(self) -> dict[str, torch.Tensor]:
        return {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}

    def moments(self) -> dict[str, torch.Tensor]:
        """Return AdamW's state under the parameters' names, created (zero) if the optimizer has not stepped yet."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self.model.named_parameters():
            slot = self.optimizer.state[parameter]
            if not slot:
                slot["step"] = torch.zeros((), device=self._step_device(parameter))
                slot["exp_avg"] = torch.zeros_like(parameter)
                slot["exp_avg_sq"] = torch.zeros_like(parameter)
            found |= {f"optimizer.{name}.{key}": slot[key] for key in ("step", "exp_avg", "exp_avg_sq")}
        return found

    def _step_device(self, parameter: nn.Parameter) -> torch.device:
        """Return where AdamW counts its steps: its fused kernel reads them on the device."""
        return parameter.device if self.optimizer.defaults["fused"] else torch.device("cpu")

    def to_save(self, ranks: Ranks) -> RankState:
        """Return the state to save. Collective: the consumed samples of all ranks are summed, so that another world
        size can resume."""
        total = self.consumed.total(ranks)
        consumed = {"position": total.position, "digest": total.digest}
        objects = {"step": self.step, "consumed": consumed, "data": self.fingerprint, "rng": rng_state(self.device)}
        if self.soundness is not None:
            objects["soundness"] = self.soundness.state_dict()
        tensors = self.parameters() | self.moments()
        return RankState(tensors, objects, stepped=tensors.keys())

    def restore(self, reader: Reader, ranks: Ranks) -> None:
        """Fill everything from a checkpoint; collective. Raises RefusedError, or ValueError when it was trained on other data."""
        world_size = reader.manifest.world_size
        objects: dict[str, Any] = {}
        ranks.together(lambda: objects.update(reader.objects(ranks.rank if ranks.rank < world_size else 0)))
        if objects["data"] != self.fingerprint:
            raise ValueError(
                f"the data has changed: fingerprint {self.fingerprint}, but the checkpoint was trained on {objects['data']}"
            )
        with torch.no_grad():
            Loader(reader, self.parameters() | self.moments(), ranks).load()
        self.step = objects["step"]
        # A state saved without these checks is accepted unchecked.
        if self.soundness is not None:
            unchecked = CorruptionState(self.step).state_dict()
            self.soundness.load_state_dict(objects.get("soundness", unchecked))
        consumed = objects["consumed"]
        self.consumed = Consumed(consumed["position"], consumed["digest"] if ranks.rank == 0 else 0)
        # An import has no CUDA state.
        if world_size == ranks.world_size and ("cuda" in objects["rng"] or self.device.type != "cuda"):
            restore_rng(objects["rng"], self.device)
        else:
            seed_all(self.seed + self.step, ranks.rank)

    def own_hash(self) -> bytes:
        """Return a hash of this rank's parameters and optimizer state."""
        return _tensors_hash(self.parameters() | self.moments())

    def hashes(self, ranks: Ranks) -> dict[str, str]:
        """Return one hash for each part of the state over all ranks, and `state` over all parts; collective."""
        total = self.consumed.total(ranks)
        found = {
            "parameters": _combined(_tensors_hash(self.parameters()), ranks),
            "optimizer": _combined(_tensors_hash(self.moments()), ranks),
            "rng": _combined(_object_hash(rng_state(self.device)), ranks),
            "samples": xxhash.xxh3_128_hexdigest(f"{total.position}/{total.digest}".encode()),
        }
        return found | {"state": xxhash.xxh3_128_hexdigest("/".join(found.values()).encode())}


def _tensors_hash(tensors: dict[str, torch.Tensor]) -> bytes:
    digest = xxhash.xxh3_128()
    for name, tensor in tensors.items():
        local = local_tensor(tensor)
        digest.update(f"{name}/{local.box}/".encode())
        digest.update(to_bytes(local.data))
    return digest.digest()


def _object_hash(value: Any) -> bytes:
    return xxhash.xxh3_128_digest(str(encode(value)).encode())


def _combined(own: bytes, ranks: Ranks) -> str:
    return xxhash.xxh3_128_hexdigest(b"".join(ranks.gather(own)))
