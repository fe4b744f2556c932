"""Builds corpora of tokens in the format of `headway prepare`, and a tokenizer of a few words."""

import random
from collections.abc import Sequence
from pathlib import Path

from headway.corpus.shard import dtype_of, write_shard
from headway.runner.contract import INDEX_NAME, CorpusIndex, to_json

VOCAB_SIZE = 256


def documents(seed: int, count: int, most: int) -> list[list[int]]:
    """Documents of 1 to `most` tokens, each ended by token 0."""
    drawn = random.Random(seed)
    return [[*(drawn.randrange(1, VOCAB_SIZE) for _ in range(drawn.randrange(most))), 0] for _ in range(count)]


def write_corpus(
    folder: Path, shards: Sequence[Sequence[list[int]]], *, tokenizer: str = "0" * 64, vocab_size: int = VOCAB_SIZE
) -> CorpusIndex:
    """A corpus with these documents in each shard."""
    folder.mkdir(parents=True)
    dtype = dtype_of(vocab_size)
    written = tuple(write_shard(folder, f"{number:05}", dtype, iter(each)) for number, each in enumerate(shards))
    index = CorpusIndex(dtype, tokenizer, vocab_size, 0, "", written)
    (folder / INDEX_NAME).write_text(to_json(index))
    return index
