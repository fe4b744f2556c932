"""Tests `headway.checkpoint` in a custom loop: saves run in parallel with training, loads are exact, and misuse is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway import checkpoint
from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.commit import Written
from headway.runner.checkpoint.setup import first_rank
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Checkpoint
from tests.support.worlds import run_world

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    """The random draws of a loop depend on this test alone."""
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
        self.run = checkpoint.open(directory, **{"tiers": {"shared": 2}, **options})
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


def test_an_interrupted_loop_resumes_as_if_uninterrupted(tmp_path: Path) -> None:
    straight = Loop(tmp_path / "straight").train(10).ended()
    Loop(tmp_path / "broken").train(5).ended()  # step 5 is not saved
    again = Loop(tmp_path / "broken", seed=99)
    assert again.step == 4
    assert again.train(6).ended() == straight


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Loop(tmp_path).train(6).ended()
    data = files(tmp_path, 6) / "data-0-0.bin"
    data.write_bytes(b"\x01" + data.read_bytes()[1:])
    again = Loop(tmp_path)
    assert again.step == 4
    assert "step-000000006.g000001 in tier `shared` is not used: " in capfd.readouterr().err
    again.train(2).ended()
    base = newest_base(Chain(PosixStore(tmp_path / "shared/chain"), tmp_path.name).read())
    assert base is not None
    assert (base.step, base.generation) == (6, 3)


def test_nothing_is_loaded_if_no_checkpoint_verifies(tmp_path: Path) -> None:
    Loop(tmp_path).train(4).ended()
    for step in (2, 4):
        (files(tmp_path, step) / "manifest.json").unlink()
    with pytest.raises(checkpoint.NothingVerifiesError, match="checkpoints were committed, but no valid one passes verification"):
        Loop(tmp_path)


def test_the_previous_owner_of_the_directory_can_no_longer_commit(tmp_path: Path) -> None:
    first = Loop(tmp_path).train(2)
    first.run.wait()
    second = Loop(tmp_path).train(2)
    with pytest.raises(checkpoint.SupersededError):
        first.train(2).run.wait()
    second.ended()
    assert Loop(tmp_path).step == 4


def test_a_write_prevented_by_a_newer_session_raises_superseded_error(tmp_path: Path) -> None:
    first = Loop(tmp_path).train(3)
    first.run.wait()
    (tmp_path / "shared/checkpoints/.tmp-step-000000004.g000001").write_text("in the way, as a deletion would be")
    second = Loop(tmp_path)
    with pytest.raises(checkpoint.SupersededError):
        first.train(1).run.wait()
    second.run.close()


def test_a_state_without_a_saved_entry_is_refused_by_name_unless_allowed(tmp_path: Path) -> None:
    with checkpoint.open(tmp_path, tiers={"shared": 1}) as run:
        run.load({"a": torch.ones(2), "b": torch.ones(3)})
        run.save(1, {"a": torch.full((2,), 5.0), "b": torch.ones(3)})
    kept = {"a": torch.zeros(2)}
    with pytest.raises(checkpoint.StateError, match="step 1 holds `b`, which the state has no place for"):
        checkpoint.open(tmp_path).load(dict(kept))
    assert checkpoint.open(tmp_path).load(kept, strict=False) == 1
    assert kept["a"].tolist() == [5.0, 5.0]


def test_a_state_with_an_entry_that_was_not_saved_is_refused_by_name(tmp_path: Path) -> None:
    with checkpoint.open(tmp_path, tiers={"shared": 1}) as run:
        run.save(1, {"a": torch.ones(2)})
    with pytest.raises(checkpoint.StateError, match="tensor `b`: 0 of 2 elements"):
        checkpoint.open(tmp_path).load({"a": torch.zeros(2), "b": torch.zeros(2)})


def test_an_unsupported_value_is_named_by_the_save(tmp_path: Path) -> None:
    run = checkpoint.open(tmp_path, tiers={"shared": 1})
    with pytest.raises(checkpoint.ObjectError, match="handle"):
        run.save(1, {"a": torch.ones(2), "handle": object()})
    with pytest.raises(OSError, match=r"step 1 is not in tier `shared`: .*handle"):
        run.wait()
    run.save(2, {"a": torch.ones(2)})
    assert [outcome.step for outcome in run.wait()] == [2]
    run.close()
    assert checkpoint.open(tmp_path).load({"a": torch.zeros(2)}) == 2


def test_values_saved_while_training_continues_are_those_of_the_step(tmp_path: Path) -> None:
    state = {"a": torch.zeros(1 << 20)}
    with checkpoint.open(tmp_path, tiers={"shared": 1}) as run:
        run.load(state)
        for step in range(1, 6):
            state["a"].fill_(step)
            run.save(step, state)
            state["a"].fill_(-1)
    for step in (3, 4, 5):
        data = torch.frombuffer(bytearray((files(tmp_path, step) / "data-0-0.bin").read_bytes()), dtype=torch.float32)
        assert set(data[: 1 << 20].tolist()) == {step}


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def saved_and_loaded(directory: Path, state: dict[str, Any], blank: dict[str, Any]) -> None:
    """Save `state`, and fill `blank` from it."""
    with checkpoint.open(directory, tiers={"shared": 1}) as run:
        run.save(1, state)
    assert checkpoint.open(directory).load(blank) == 1


def equal_moments(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    found, wanted = one.state_dict()["state"], other.state_dict()["state"]
    return found.keys() == wanted.keys() and all(
        torch.equal(value, found[number][name]) for number, slots in wanted.items() for name, value in slots.items()
    )


def test_opening_and_loading_a_new_run_does_not_change_the_training(tmp_path: Path) -> None:
    def weights(saved: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if saved:
            with checkpoint.open(tmp_path, tiers={"shared": 1}, rng=False) as run:
                run.load({"model": model, "optimizer": optimizer})
                run.save(0, {"model": model, "optimizer": optimizer})
        assert not optimizer.state
        trained(model, optimizer, 3)
        return model.weight.detach()

    assert torch.equal(weights(saved=False), weights(saved=True))


def test_a_parameter_without_gradients_has_no_optimizer_state_after_a_load(tmp_path: Path) -> None:
    def state(steps: int) -> dict[str, Any]:
        model = nn.ModuleDict({"used": nn.Linear(6, 3), "unused": nn.Linear(6, 3)})
        optimizer = torch.optim.AdamW(model.parameters())
        trained(model["used"], optimizer, steps)
        return {"model": model, "optimizer": optimizer}

    saved, blank = state(2), state(0)
    saved_and_loaded(tmp_path, saved, blank)
    assert len(blank["optimizer"].state) == 2
    assert equal_moments(blank["optimizer"], saved["optimizer"])


def test_an_optimizer_of_several_or_no_models_is_loaded_into_a_new_one(tmp_path: Path) -> None:
    def state(steps: int) -> dict[str, Any]:
        first, second = nn.Linear(6, 3), nn.Linear(3, 2)
        both = torch.optim.AdamW([*first.parameters(), *second.parameters()])
        trained(nn.Sequential(first, second), both, steps)
        return {"first": first, "second": second, "both": both}

    saved, blank = state(2), state(0)
    saved_and_loaded(tmp_path, saved, blank)
    assert equal_moments(blank["both"], saved["both"])


def test_models_and_optimizers_in_dicts_of_the_state_are_loaded_in_place(tmp_path: Path) -> None:
    def state(steps: int, notes: dict[str, Any]) -> dict[str, Any]:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        trained(model, optimizer, steps)
        return {"part": {"model": model, "optimizer": optimizer, "position": steps}, "notes": notes}

    saved, blank = state(2, {"losses": [1.0]}), state(0, {})
    model = blank["part"]["model"]
    saved_and_loaded(tmp_path, saved, blank)
    assert blank["part"]["model"] is model
    assert torch.equal(model.weight, saved["part"]["model"].weight)
    assert equal_moments(blank["part"]["optimizer"], saved["part"]["optimizer"])
    assert (blank["part"]["position"], blank["notes"]) == (2, {"losses": [1.0]})


def test_gradients_present_before_the_load_do_not_hide_optimizer_state(tmp_path: Path) -> None:
    saved, blank = nn.Linear(6, 3), nn.Linear(6, 3)
    one, other = torch.optim.AdamW(saved.parameters()), torch.optim.AdamW(blank.parameters())
    trained(saved, one, 2)
    blank(torch.ones(1, 6)).sum().backward()
    gradient = blank.weight.grad
    saved_and_loaded(tmp_path, {"model": saved, "optimizer": one}, {"model": blank, "optimizer": other})
    assert equal_moments(other, one)
    assert blank.weight.grad is gradient


def test_a_state_without_tensors_is_loaded(tmp_path: Path) -> None:
    blank: dict[str, Any] = {"notes": {}}
    saved_and_loaded(tmp_path, {"notes": {"a": 1}, "epoch": 3}, blank)
    assert blank == {"notes": {"a": 1}, "epoch": 3}


def test_a_conjugated_view_is_filled_with_the_saved_values(tmp_path: Path) -> None:
    blank = torch.zeros(3, dtype=torch.complex64).conj()
    saved_and_loaded(tmp_path, {"z": torch.full((3,), 1 + 2j)}, {"z": blank})
    assert blank.tolist() == [1 + 2j] * 3


def test_two_values_with_one_path_are_refused(tmp_path: Path) -> None:
    run = checkpoint.open(tmp_path, tiers={"shared": 1})
    with pytest.raises(checkpoint.StateError, match="two values of the state have the path `a/b`"):
        run.save(1, {"a/b": torch.ones(2), "a": {"b": torch.zeros(2)}})


def test_a_tensor_that_cannot_be_copied_fails_its_save_without_waiting(tmp_path: Path) -> None:
    run = checkpoint.open(tmp_path, tiers={"shared": 1})
    for bad in (torch.ones(3, 3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(NotImplementedError):
            run.save(1, {"a": torch.ones(2), "bad": bad})
    with pytest.raises(OSError, match="step 1 is not in tier `shared`: Cannot access storage"):
        run.wait()
    run.save(2, {"a": torch.ones(2)})
    run.close()
    assert checkpoint.open(tmp_path).load({"a": torch.zeros(2)}) == 2


def test_an_interrupted_save_does_not_block_the_end_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = checkpoint.open(tmp_path, tiers={"shared": 1})
    run.load({"a": torch.ones(2)})
    monkeypatch.setattr(torch, "_foreach_copy_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.save(1, {"a": torch.ones(2)})
    run.close()
    monkeypatch.undo()
    assert checkpoint.open(tmp_path).load({"a": torch.ones(2)}) == 0


def test_a_step_saved_again_is_committed_once(tmp_path: Path) -> None:
    with checkpoint.open(tmp_path, tiers={"shared": 1}) as run:
        for step in (1, 2):
            run.save(step, {"a": torch.ones(2)})
            run.save(step, {"a": torch.ones(2)}, now=True)
    assert checkpoint.open(tmp_path).load({"a": torch.zeros(2)}) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tiers": {"dsk": 1}}, "'dsk' is not a tier of a custom training loop: expected memory, shared, remote"),
        ({"tiers": {"shared": 0}}, "'shared' has the interval 0: expected a whole number of steps, at least 1"),
        ({"tiers": {"remote": 1}}, "'remote' needs a bucket"),
        ({"keep": 0}, "keep is 0"),
    ],
)
def test_an_invalid_tier_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checkpoint.open(tmp_path, **options)


def test_one_of_several_ranks_without_a_process_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="this is one of 2 ranks"):
        checkpoint.open(tmp_path)


def test_a_rank_that_cannot_save_fails_only_that_save_and_blocks_no_rank(tmp_path: Path) -> None:
    run_world("tests.support.ranks.disagreeing", 2, tmp_path)


def test_a_save_deleted_by_a_newer_generation_is_superseded(tmp_path: Path) -> None:
    first = checkpoint.open(tmp_path, tiers={"shared": 1})
    assert first.load({"a": torch.ones(2)}) == 0
    committer = first_rank(first._authority.place, first._authority.chain, Checkpoint(()))
    checkpoint.open(tmp_path)
    with pytest.raises(checkpoint.SupersededError):
        committer.commit(1, "shared", [Written("0" * 32, 4096)])
    first.close()


def test_a_chain_lost_next_to_checkpoints_is_not_restarted(tmp_path: Path) -> None:
    Loop(tmp_path).train(2).ended()
    for record in (tmp_path / "shared/chain").iterdir():
        record.unlink()
    with pytest.raises(
        checkpoint.NothingVerifiesError, match="holds checkpoints but the chain is empty; run `headway checkpoint adopt`"
    ):
        Loop(tmp_path)
    assert files(tmp_path, 2).is_dir()
