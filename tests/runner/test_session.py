"""`headway.checkpoint` in a loop of one's own: saved beside training, restored exactly, refused where it must be."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway import checkpoint
from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.stores.posix import PosixStore

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    """What a loop draws from is this test's own."""
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


class Loop:
    """A small model with dropout, momentum and a schedule, trained on random numbers: one wrong bit anywhere shows."""

    def __init__(self, directory: Path, seed: int = 0, **options: Any) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        self.state: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "notes": {"losses": []}}
        self.run = checkpoint.open(directory, **{"tiers": {"disk": 2}, **options})
        self.step = self.run.load(self.state)

    def train(self, steps: int) -> "Loop":
        model, optimizer = self.state["model"], self.state["optimizer"]
        for _ in range(steps):
            loss = model(torch.randn(8, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.state["schedule"].step()
            self.state["notes"]["losses"].append(loss.item())
            self.step += 1
            self.run.save(self.step, self.state)
        return self

    def ended(self) -> list[float]:
        """The losses of all steps, once everything is saved."""
        self.run.wait()
        self.run.close()
        found: list[float] = self.state["notes"]["losses"]
        return found


def files(directory: Path, step: int) -> Path:
    (found,) = (directory / "shared/checkpoints").glob(f"step-{step:09d}.g*")
    return found


def test_a_loop_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    straight = Loop(tmp_path / "straight").train(10).ended()
    Loop(tmp_path / "broken").train(5).ended()  # step 5 is not saved
    again = Loop(tmp_path / "broken", seed=99)
    assert again.step == 4
    assert again.train(6).ended() == straight


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Loop(tmp_path).train(6).ended()
    data = files(tmp_path, 6) / "data-0-0.bin"
    data.write_bytes(b"\x01" + data.read_bytes()[1:])
    again = Loop(tmp_path)
    assert again.step == 4
    assert "step-000000006.g000001 on disk is not used: " in capfd.readouterr().err
    again.train(2).ended()
    base = newest_base(Chain(PosixStore(tmp_path / "shared/chain"), tmp_path.name).read())
    assert base is not None
    assert (base.step, base.generation) == (6, 3)


def test_when_none_verifies_nothing_is_loaded(tmp_path: Path) -> None:
    Loop(tmp_path).train(4).ended()
    for step in (2, 4):
        (files(tmp_path, step) / "manifest.json").unlink()
    with pytest.raises(checkpoint.NothingVerifiesError, match="checkpoints were committed, and none that counts verifies"):
        Loop(tmp_path)


def test_whoever_had_the_directory_before_cannot_commit_any_more(tmp_path: Path) -> None:
    first = Loop(tmp_path).train(2)
    first.run.wait()
    second = Loop(tmp_path).train(2)
    with pytest.raises(checkpoint.SupersededError):
        first.train(2).run.wait()
    second.ended()
    assert Loop(tmp_path).step == 4


def test_a_state_that_lacks_what_was_saved_is_refused_by_name_unless_it_says_so(tmp_path: Path) -> None:
    with checkpoint.open(tmp_path, tiers={"disk": 1}) as run:
        run.load({"a": torch.ones(2), "b": torch.ones(3)})
        run.save(1, {"a": torch.full((2,), 5.0), "b": torch.ones(3)})
    kept = {"a": torch.zeros(2)}
    with pytest.raises(checkpoint.StateError, match="step 1 holds `b`, for which the state has no place"):
        checkpoint.open(tmp_path).load(dict(kept))
    assert checkpoint.open(tmp_path).load(kept, strict=False) == 1
    assert kept["a"].tolist() == [5.0, 5.0]


def test_a_state_that_wants_more_than_was_saved_is_refused_by_name(tmp_path: Path) -> None:
    with checkpoint.open(tmp_path, tiers={"disk": 1}) as run:
        run.save(1, {"a": torch.ones(2)})
    with pytest.raises(checkpoint.StateError, match="tensor `b`: 0 of 2 elements"):
        checkpoint.open(tmp_path).load({"a": torch.zeros(2), "b": torch.zeros(2)})


def test_a_value_that_a_checkpoint_cannot_hold_is_named_where_it_is_saved(tmp_path: Path) -> None:
    run = checkpoint.open(tmp_path, tiers={"disk": 1})
    with pytest.raises(checkpoint.ObjectError, match="handle"):
        run.save(1, {"a": torch.ones(2), "handle": object()})
    run.save(2, {"a": torch.ones(2)})
    with pytest.raises(OSError, match=r"step 1 is not in tier `disk`: .*handle"):
        run.wait()
    run.close()
    assert checkpoint.open(tmp_path).load({"a": torch.zeros(2)}) == 2


def test_values_saved_while_the_state_goes_on_are_those_of_the_step(tmp_path: Path) -> None:
    state = {"a": torch.zeros(1 << 20)}
    with checkpoint.open(tmp_path, tiers={"disk": 1}) as run:
        run.load(state)
        for step in range(1, 6):
            state["a"].fill_(step)
            run.save(step, state)
            state["a"].fill_(-1)
    for step in (3, 4, 5):
        data = torch.frombuffer(bytearray((files(tmp_path, step) / "data-0-0.bin").read_bytes()), dtype=torch.float32)
        assert set(data[: 1 << 20].tolist()) == {step}
