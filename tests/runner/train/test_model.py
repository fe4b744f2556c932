"""Tests the builtin trainer's parts: a causal model that is independent of its layout, its rate, generators and data."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Shard

from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.objects import decode, encode
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.rng import restore_rng, rng_state, seed_all
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Data, Mesh, Model, Optimizer
from headway.runner.train.data import DataError, open_corpus
from headway.runner.train.model import Transformer, initialize, rotary_tables, rotate
from headway.runner.train.optimizer import learning_rate, make_optimizer
from headway.runner.train.state import Consumed, TrainState
from tests.support.layouts import mesh_of, shard
from tests.support.saves import save

CPU = torch.device("cpu")
SMALL = Model(vocab_size=19, layers=2, hidden=16, heads=4, kv_heads=2, ffn_hidden=24)


def built(config: Model = SMALL, seed: int = 1) -> Transformer:
    model = Transformer(config)
    initialize(model, config, seed)
    return model.eval()


# --- parameters -------------------------------------------------------------------------------------------------------


def parameters_of(c: Model) -> int:
    """The closed form: embedding and output, and per layer four projections, three matrices of the MLP and two norms."""
    head = c.hidden // c.heads
    attention = 2 * c.hidden * c.heads * head + 2 * c.hidden * c.kv_heads * head
    layer = attention + 3 * c.hidden * c.ffn_hidden + 2 * c.hidden
    return c.layers * layer + c.hidden + (1 if c.tie_embeddings else 2) * c.vocab_size * c.hidden


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, tie_embeddings=True), replace(SMALL, kv_heads=4, layers=1)])
def test_the_number_of_parameters_follows_the_formula(config: Model) -> None:
    assert sum(parameter.numel() for parameter in Transformer(config).parameters()) == parameters_of(config)


def test_llama_2_7b_has_its_published_size() -> None:
    config = Model(32000, 32, 4096, 32, 32, 11008)
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters_of(config) == 6_738_415_616


class Sharded(nn.Module):
    """The parameters of a model as one rank holds them."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._held = parameters

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        return iter(self._held.items())


@pytest.mark.parametrize(("ranks", "dim"), [(2, 0), (3, 0), (5, 0), (2, 1)])
def test_initial_values_do_not_depend_on_the_layout(ranks: int, dim: int) -> None:
    whole = dict(built(seed=5).named_parameters())
    for rank in range(ranks):
        with mesh_of(rank, (ranks,)) as mesh:
            held: dict[str, torch.Tensor] = {
                name: shard(torch.zeros_like(parameter), mesh, [Shard(min(dim, parameter.dim() - 1))])
                for name, parameter in whole.items()
            }
        initialize(Sharded(held), SMALL, seed=5)
        for name, parameter in held.items():
            local = local_tensor(parameter)
            place = tuple(slice(o, o + n) for o, n in zip(local.box.offset, local.box.shape, strict=True))
            assert torch.equal(local.data, whole[name].detach()[place]), (rank, name)


def test_initial_values_depend_on_seed_and_name_only() -> None:
    one, same, other = (dict(built(seed=seed).named_parameters()) for seed in (1, 1, 2))
    matrices = [name for name, parameter in one.items() if parameter.dim() == 2]
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in matrices)
    assert not torch.equal(one["layers.0.feed_forward.w1.weight"], one["layers.0.feed_forward.w3.weight"])
    deeper = dict(built(replace(SMALL, layers=3)).named_parameters())
    assert torch.equal(deeper["layers.1.attention.wq.weight"], one["layers.1.attention.wq.weight"])


@pytest.mark.slow
def test_initial_values_have_the_published_spread() -> None:
    config = replace(SMALL, hidden=256, ffn_hidden=512, vocab_size=256, layers=8)
    parameters = built(config).state_dict()
    assert float(parameters["embedding.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(parameters["layers.3.feed_forward.w2.weight"].std()) == pytest.approx(0.02 / 4, rel=0.02)  # sqrt(2 * 8)
    assert float(parameters["layers.3.attention.wo.weight"].std()) == pytest.approx(0.02 / 4, rel=0.02)
    assert set(parameters["norm.weight"].tolist()) == {1.0}


# --- computation ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 11), st.integers(0, 18), st.integers(0, 100))
def test_a_token_does_not_change_earlier_logits(at: int, token: int, seed: int) -> None:
    model = built()
    tokens = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(seed))
    changed = tokens.clone()
    changed[0, at] = (tokens[0, at] + 1 + token % 18) % 19
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 12, 19)
    assert torch.equal(before[0, :at], after[0, :at])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0, at], after[0, at])


def test_grouped_query_attention_shares_its_keys_and_values() -> None:
    """With as many kv heads as heads and each group's weights repeated, the result is the same."""
    grouped, full = built(), built(replace(SMALL, kv_heads=4))
    state = {name: tensor.clone() for name, tensor in grouped.state_dict().items()}
    for name in list(state):
        if name.endswith(("wk.weight", "wv.weight")):
            state[name] = state[name].reshape(2, 4, 16).repeat_interleave(2, dim=0).reshape(16, 16)
    full.load_state_dict(state)
    tokens = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        torch.testing.assert_close(grouped(tokens), full(tokens))


def test_rotation_preserves_lengths_and_makes_products_depend_on_distance() -> None:
    cos, sin = rotary_tables(torch.arange(32), 8, 10_000.0)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    turned_q, turned_k = (rotate(x.expand(1, 1, 32, 8), cos, sin)[0, 0] for x in (q, k))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(32))
    products = turned_q @ turned_k.T
    for distance in (0, 1, 7):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(products[0, 0], products[0, 7])


# --- the learning rate ------------------------------------------------------------------------------------------------

RATE = Optimizer(lr=2.0, warmup_steps=4, min_lr_ratio=0.25)


def test_the_rate_rises_to_its_peak_and_ends_at_its_minimum() -> None:
    rates = [learning_rate(RATE, step, 21) for step in range(21)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    # Halfway between the end of the warm-up and the last step.
    assert rates[12] == pytest.approx((2.0 + 0.5) / 2)
    assert rates[-1] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(rates[4:]))


@given(st.integers(0, 50), st.integers(1, 200), st.floats(0, 1))
def test_the_rate_stays_between_zero_and_its_peak(warmup: int, steps: int, ratio: float) -> None:
    config = Optimizer(lr=1.0, warmup_steps=warmup, min_lr_ratio=ratio)
    rates = [learning_rate(config, step, steps) for step in range(steps)]
    assert all(0 < rate <= 1.0 + 1e-12 or ratio == 0 for rate in rates)
    if steps > warmup + 1:
        assert rates[-1] == pytest.approx(ratio, abs=1e-9)


def test_matrices_decay_but_norms_do_not() -> None:
    model = built()
    groups = make_optimizer(model, Optimizer(lr=1.0, weight_decay=0.3)).param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert all(parameter.dim() == 2 for parameter in groups[0]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


# --- random generators ------------------------------------------------------------------------------------------------


def drawn() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        torch.randn(3).tolist(),
        torch.rand(1).item(),
        np.random.randint(1 << 30),
    )


@pytest.fixture
def _generators() -> Any:
    before = rng_state(CPU)
    yield
    restore_rng(before, CPU)


@pytest.mark.usefixtures("_generators")
def test_all_generators_continue_where_they_were_saved() -> None:
    seed_all(7, rank=1)
    # Leaves half of a Gaussian pair in Python's and NumPy's generators.
    drawn()
    text = json.dumps(encode(rng_state(CPU)))
    first = [drawn() for _ in range(3)]
    seed_all(8, rank=0)
    assert drawn() != first[0]
    restore_rng(decode(json.loads(text)), CPU)
    assert [drawn() for _ in range(3)] == first


@pytest.mark.usefixtures("_generators")
def test_each_rank_and_seed_draws_its_own_numbers() -> None:
    seen = set()
    for seed in (0, 1, 2**63 - 1):
        for rank in range(4):
            seed_all(seed, rank)
            seen.add(str(drawn()))
    assert len(seen) == 12


# --- the whole state --------------------------------------------------------------------------------------------------


def training(seed: int = 1, fingerprint: str = "abc") -> TrainState:
    config = replace(SMALL, dropout=0.1)
    model = Transformer(config)
    initialize(model, config, seed)
    seed_all(seed, rank=0)
    return TrainState(model, make_optimizer(model, Optimizer(lr=0.01)), Consumed(), CPU, seed, fingerprint)


def train(state: TrainState, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 19, (2, 9))
        logits = state.model.train()(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.consumed.take(state.consumed.position, tokens)
        state.consumed.position += 2
        state.step += 1
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture
def place(tmp_path: Path) -> CheckpointLocation:
    (tmp_path / "chain").mkdir()
    Chain(PosixStore(tmp_path / "chain"), "run-1").claim(None, 0, "tester")
    return CheckpointLocation(tmp_path / "checkpoints", "run-1", 1, 0, 1, Mesh())


def reader_of(place: CheckpointLocation) -> Reader:
    base = newest_base(Chain(PosixStore(place.root.parent / "chain"), "run-1").read())
    assert base is not None
    return Reader(DirectorySource(place.root / base.checkpoint.directory), "run-1", base)


def save_state(place: CheckpointLocation, state: TrainState) -> None:
    chain = Chain(PosixStore(place.root.parent / "chain"), "run-1")
    save(place, chain, Ranks(), state.step, state.to_save(Ranks()), keep=3)


@pytest.mark.slow
@pytest.mark.usefixtures("_generators")
@pytest.mark.parametrize("at", [0, 3])
def test_a_run_that_was_saved_and_restored_ends_with_the_same_hashes(place: CheckpointLocation, at: int) -> None:
    straight = training()
    before = train(straight, at)
    save_state(place, straight)
    after = train(straight, 3)
    wanted = straight.hashes(Ranks())
    resumed = training(seed=2)
    train(resumed, 1)  # any other step
    resumed.restore(reader_of(place), Ranks())
    assert (resumed.step, train(resumed, 3)) == (at, after)
    assert resumed.hashes(Ranks()) == wanted
    assert len(before) == at


@pytest.mark.slow
@pytest.mark.usefixtures("_generators")
def test_each_part_of_the_state_has_a_hash_that_detects_its_changes() -> None:
    state = training()
    train(state, 1)
    before = state.hashes(Ranks())

    def differing() -> set[str]:
        return {name for name, value in state.hashes(Ranks()).items() if value != before[name]}

    state.consumed.digest ^= 1
    assert differing() == {"samples", "state"}
    torch.rand(1)
    assert differing() == {"samples", "rng", "state"}
    next(iter(state.moments().values())).add_(1)
    assert differing() == {"samples", "rng", "optimizer", "state"}
    with torch.no_grad():
        state.model.get_parameter("norm.weight")[3] += 1e-7
    assert differing() == {"samples", "rng", "optimizer", "parameters", "state"}


@pytest.mark.usefixtures("_generators")
def test_a_state_is_not_restored_on_other_data(place: CheckpointLocation) -> None:
    state = training()
    save_state(place, state)
    with pytest.raises(ValueError, match="the data has changed: fingerprint other, but the checkpoint was trained on abc"):
        training(fingerprint="other").restore(reader_of(place), Ranks())


def test_consumed_samples_are_identified_by_position_and_not_by_order() -> None:
    samples = [(position, torch.tensor([position * 7, 3])) for position in range(6)]
    one, other, moved = Consumed(), Consumed(), Consumed()
    for position, tokens in samples:
        one.take(position, tokens)
        moved.take(position + 1, tokens)
    for position, tokens in reversed(samples):
        other.take(position, tokens)
    assert one.digest == other.digest != moved.digest


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> str:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(f"<{name}>")
    return str(tmp_path)


def test_files_are_read_in_order_and_once_each(texts: str) -> None:
    corpus = open_corpus(Data("files", {"paths": [f"{texts}/*.txt", f"{texts}/a.*"]}))
    assert bytes(corpus.tokens) == b"<a.txt><b.txt>"


@pytest.mark.parametrize(("limit", "expected"), [(3, b"<a."), (7, b"<a.txt>"), (9, b"<a.txt><b"), (99, b"<a.txt><b.txt>")])
def test_a_limit_truncates_the_corpus(texts: str, limit: int, expected: bytes) -> None:
    corpus = open_corpus(Data("files", {"paths": [f"{texts}/*.txt"], "limit_bytes": limit}))
    assert bytes(corpus.tokens) == expected


def test_samples_overlap_by_the_next_token(texts: str) -> None:
    corpus = open_corpus(Data("files", {"paths": [f"{texts}/*.txt"]}))  # 14 bytes
    assert corpus.windows(4) == 3
    assert bytes(corpus.sample(0, 4).tolist()) == b"<a.tx"
    assert bytes(corpus.sample(2, 4).tolist()) == b"b.txt"
    assert corpus.sample(2, 4).dtype == torch.int64


def test_other_data_has_another_fingerprint(texts: str) -> None:
    paths = Data("files", {"paths": [f"{texts}/*.txt"]})
    before = open_corpus(paths).fingerprint
    assert open_corpus(paths).fingerprint == before
    Path(texts, "a.txt").write_text("<a.txT>")
    assert open_corpus(paths).fingerprint != before


def test_a_corpus_without_a_sample_is_refused(texts: str) -> None:
    corpus = open_corpus(Data("files", {"paths": [f"{texts}/*.txt"]}))
    assert corpus.windows(13) == 1
    with pytest.raises(DataError, match="14 tokens are too few for one sample of 14 and the token that follows"):
        corpus.windows(14)


def test_data_without_a_byte_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="no bytes in 1 files"):
        open_corpus(Data("files", {"paths": [str(tmp_path / "empty.txt")]}))


def test_a_path_without_a_file_is_refused_even_among_valid_ones(texts: str) -> None:
    with pytest.raises(DataError, match=r"`/no/such/\*` matches no file"):
        open_corpus(Data("files", {"paths": [f"{texts}/*.txt", "/no/such/*"]}))


def test_an_unknown_kind_of_data_is_refused() -> None:
    with pytest.raises(DataError, match="data kind 'web'"):
        open_corpus(Data("web"))


def test_the_standard_library_is_a_corpus_of_python_source() -> None:
    corpus = open_corpus(Data("python-stdlib", {"limit_bytes": 200_000}))
    assert len(corpus.tokens) == 200_000
    assert b"def " in bytes(corpus.tokens)
