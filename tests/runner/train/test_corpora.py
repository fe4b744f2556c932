"""Tests corpora of tokens: the contents of a sample, the order of mixed corpora, and which damage is refused by name."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import (
    INDEX_NAME,
    LARGEST_PERIOD,
    Batch,
    Change,
    Data,
    Mesh,
    Mixture,
    Model,
    RunConfig,
    Trainer,
    from_json,
    to_json,
)
from headway.runner.contract import CorpusIndex as Index
from headway.runner.train.corpora import ShardReader, TokenText, open_corpora, read_index
from headway.runner.train.data import DataError
from headway.runner.train.model import Transformer, document_mask, initialize
from tests.support.corpora import documents, write_corpus

LENGTH = 16
weights = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=5)


# --- one corpus -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 60))
def test_any_range_of_a_corpus_has_its_tokens_and_document_starts(
    tmp_path_factory: pytest.TempPathFactory, begin: int, count: int
) -> None:
    shards = [documents(seed, 8, 9) for seed in range(5)]
    folder = tmp_path_factory.mktemp("corpora") / "one"
    text = TokenText(folder, write_corpus(folder, shards))
    each = [document for shard in shards for document in shard]
    whole = [token for document in each for token in document]
    starts = np.repeat(np.cumsum([0, *map(len, each)])[:-1], [len(document) for document in each])
    count = min(count, len(whole) - begin)
    assert text.tokens(begin, count).tolist() == whole[begin : begin + count]
    assert text.starts(begin, count).tolist() == np.maximum(starts[begin : begin + count] - begin, 0).tolist()


def test_large_vocabularies_use_four_bytes(tmp_path: Path) -> None:
    index = write_corpus(tmp_path / "a", [[[70_000, 5]]], vocab_size=100_000)
    assert (index.dtype, TokenText(tmp_path / "a", index).tokens(0, 2).tolist()) == ("uint32", [70_000, 5])


# --- the mixture ------------------------------------------------------------------------------------------------------


@given(weights, st.integers(0, 1000))
def test_every_prefix_has_each_corpus_in_its_proportion(shares: list[float], places: int) -> None:
    mixture = Mixture(shares)
    counts = mixture.counts(places)
    assert sum(counts) == places
    for count, share, weight in zip(counts, mixture.shares, shares, strict=True):
        assert abs(count - places * share / mixture.period) < 1
        assert abs(share / mixture.period - weight / sum(shares)) <= 1 / LARGEST_PERIOD


@given(weights)
def test_each_sample_of_a_corpus_is_used_once_and_in_order(shares: list[float]) -> None:
    mixture = Mixture(shares)
    seen = [0] * len(shares)
    for place in range(500):
        corpus, earlier = mixture.at(place)
        assert earlier == seen[corpus]
        seen[corpus] += 1
    assert seen == mixture.counts(500)


def test_the_sample_order_equals_that_of_earlier_runs() -> None:
    """Another order would make a resumed run see some samples twice and some never."""
    mixture = Mixture([0.5, 0.3, 0.2])
    assert [mixture.at(place)[0] for place in range(10)] == [0, 1, 0, 2, 0, 1, 0, 2, 1, 0]


def test_a_weight_too_small_to_count_is_refused() -> None:
    with pytest.raises(ValueError, match="a weight of 1e-09 is less than 1/16,384 of all weights"):
        Mixture([1.0, 1e-9])


# --- opening ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """Two corpora, and the job that is trained on them."""

    root: Path
    config: RunConfig

    def opened(self, ranks: Ranks | None = None, **options: Any) -> Any:
        assert self.config.data is not None
        data = dataclasses.replace(self.config.data, options={**self.config.data.options, **options})
        reader = ShardReader(ranks or Ranks(), 0, 1, self.root / "verified.json")
        return open_corpora(dataclasses.replace(self.config, data=data), reader)

    def changed(self, **values: Any) -> "Case":
        return Case(self.root, dataclasses.replace(self.config, **values))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    write_corpus(tmp_path / "a", [documents(seed, 40, 20) for seed in range(3)])
    write_corpus(tmp_path / "b", [documents(3, 40, 20)])
    corpora = [
        {"path": str(tmp_path / "a"), "weight": 3.0, "epochs": 9},
        {"path": str(tmp_path / "b"), "weight": 1.0, "epochs": 9},
    ]
    data = Data("tokens", {"corpora": corpora, "document_mask": True, "verify": "job"})
    trainer, model = Trainer("builtin"), Model(256, 1, 16, 2, 2, 32)
    return Case(
        tmp_path,
        RunConfig(1, 1, Mesh(), trainer=trainer, spec_hash="", steps=8, model=model, data=data, batch=Batch(4, 1, LENGTH)),
    )


def test_samples_are_proportional_and_determined_by_position_and_seed(case: Case) -> None:
    samples = case.opened()
    window = samples.at(5, LENGTH, seed=1)
    assert (window.tokens.shape, window.tokens.dtype, window.starts.shape) == ((LENGTH + 1,), torch.int64, (LENGTH,))
    again = case.opened().at(5, LENGTH, seed=1)
    assert torch.equal(window.tokens, again.tokens)
    assert torch.equal(window.starts, again.starts)
    assert not torch.equal(window.tokens, samples.at(5, LENGTH, seed=2).tokens)
    first = samples.texts[0].index.windows(LENGTH)
    seen = {
        tuple(samples.at(place, LENGTH, 1).tokens.tolist())
        for place in range(first * 4 // 3)
        if samples.mixture.at(place)[0] == 0
    }
    assert len(seen) == first, "an epoch has each sample once"


def test_documents_are_separated_only_on_request(case: Case) -> None:
    assert case.opened(document_mask=False).at(0, LENGTH, seed=1).starts is None


def test_the_fingerprint_is_determined_by_content_and_weights(case: Case) -> None:
    before = case.opened().fingerprint
    assert case.config.data is not None
    corpora = case.config.data.options["corpora"]
    (case.root / "a").rename(case.root / "moved")
    moved = [corpora[0] | {"path": str(case.root / "moved")}, corpora[1]]
    assert case.opened(corpora=moved).fingerprint == before
    assert case.opened(corpora=[moved[0] | {"weight": 2.0}, moved[1]]).fingerprint != before
    assert case.opened(corpora=moved[:1]).fingerprint != before


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[7] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("name", ["00001.tokens", "00001.ends"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(shorten, "bytes, not the"), (Path.unlink, "cannot be read: No such file"), (flip, "but not those of the index")],
)
def test_a_damaged_shard_is_refused_by_name(case: Case, name: str, damage: Callable[[Path], None], message: str) -> None:
    case.opened(verify="sizes")
    damage(case.root / "a" / name)
    with pytest.raises(DataError) as refused:
        case.opened()
    assert f"`{case.root}/a/{name}`" in str(refused.value)
    assert message in str(refused.value)
    assert str(refused.value).count(";") == 0, "one problem, one message"


def test_hashes_are_compared_once_per_attempt_always_or_never(case: Case) -> None:
    case.opened()
    flip(case.root / "a" / "00000.tokens")
    case.opened(verify="job")
    case.opened(verify="sizes")
    with pytest.raises(DataError, match=r"a/00000\.tokens"):
        case.opened(verify="node")
    (case.root / "verified.json").unlink()
    with pytest.raises(DataError, match=r"a/00000\.tokens"):
        case.opened(verify="job")


def test_a_verification_of_another_corpus_does_not_count(case: Case) -> None:
    (case.root / "verified.json").write_text(json.dumps("another"))
    flip(case.root / "a" / "00000.tokens")
    with pytest.raises(DataError, match=r"a/00000\.tokens"):
        case.opened()


def test_all_damage_is_named_at_once(case: Case) -> None:
    for name in ("00000.tokens", "00002.ends"):
        shorten(case.root / "a" / name)
    with pytest.raises(DataError, match=r"00000\.tokens.*; .*00002\.ends"):
        case.opened()


def rewrite(folder: Path, **values: Any) -> None:
    file = folder / INDEX_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": "headway.corpus/0"}, "unknown schema 'headway.corpus/0'; expected 'headway.corpus/1'"),
        ({"dtype": "int8"}, "its tokens are `int8`"),
        ({"shards": []}, "it has no shards"),
        ({"tokens": 3}, "not from this version of headway"),
    ],
)
def test_an_index_of_another_version_is_refused(case: Case, values: dict[str, Any], message: str) -> None:
    rewrite(case.root / "a", **values)
    with pytest.raises(DataError) as refused:
        case.opened()
    assert message in str(refused.value)


def test_a_folder_without_an_index_is_refused(case: Case) -> None:
    (case.root / "a" / INDEX_NAME).unlink()
    with pytest.raises(DataError, match=rf"the corpus `{case.root}/a` has no index `corpus.json` that can be read: No such file"):
        case.opened()


def test_corpora_that_do_not_fit_the_job_are_refused(case: Case) -> None:
    assert case.config.model is not None
    with pytest.raises(DataError, match="has token 255, the model's `vocab_size` is 255"):
        case.changed(model=dataclasses.replace(case.config.model, vocab_size=255)).opened()
    rewrite(case.root / "b", tokenizer="1" * 64)
    with pytest.raises(DataError, match="are of different tokenizers"):
        case.opened()


def test_steps_that_need_more_passes_than_allowed_are_refused(case: Case) -> None:
    assert case.config.data is not None
    often, once = case.config.data.options["corpora"]
    corpora = [often, once | {"epochs": 1}]
    index = read_index(case.root / "b")
    # A quarter of the samples.
    enough = index.windows(LENGTH)
    case.changed(steps=enough).opened(corpora=corpora)
    with pytest.raises(
        DataError, match=f"has {enough:,} samples of 16 tokens, but {enough + 1:,} steps take {enough + 1:,} of it"
    ):
        case.changed(steps=enough + 1).opened(corpora=corpora)
    later = (Change(2, set={"steps": enough + 1}),)
    with pytest.raises(DataError, match=f"{enough + 1:,} steps take"):
        case.changed(steps=enough, history=later).opened(corpora=corpora)


def test_an_index_is_unchanged_after_a_round_trip(case: Case) -> None:
    index = read_index(case.root / "a")
    assert from_json(Index, to_json(index)) == index


# --- separated documents ----------------------------------------------------------------------------------------------


def test_a_token_attends_to_its_document_up_to_itself() -> None:
    mask = document_mask(torch.tensor([[0, 0, 2, 2, 2]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_packed_documents_have_the_logits_and_gradients_of_separate_ones(recompute: str) -> None:
    from headway.runner.contract import Execution

    config = Model(32, 2, 16, 4, 2, 24)
    model = Transformer(config, Execution(recompute=recompute))
    initialize(model, config, seed=3)
    one, other = torch.arange(1, 7), torch.arange(20, 15, -1)
    packed = torch.cat((one, other)).unsqueeze(0)
    starts = torch.tensor([[0] * len(one) + [len(one)] * len(other)])
    apart = torch.cat((model(one.unsqueeze(0)), model(other.unsqueeze(0))), dim=1)
    together = model(packed, None, starts)
    torch.testing.assert_close(together, apart)
    parameters = list(model.parameters())
    for found, expected in zip(
        torch.autograd.grad(together.square().sum(), parameters),
        torch.autograd.grad(apart.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
    assert not torch.allclose(model(packed), apart), "without the mask the second document sees the first"


class RanksOfTwoNodes(Ranks):
    """Three ranks that find the same, two of them on one node."""

    def gather_any(self, data: bytes) -> list[bytes]:
        return [json.dumps({**json.loads(data), "node": node}).encode() for node in ("n1", "n1", "n2")]


def test_a_problem_of_several_ranks_is_reported_once_with_their_nodes(case: Case) -> None:
    (case.root / "a" / "00000.tokens").unlink()
    with pytest.raises(DataError) as refused:
        case.opened(RanksOfTwoNodes())
    assert str(refused.value).count("00000.tokens") == 1
    assert str(refused.value).endswith(" (on n1, n2)")
