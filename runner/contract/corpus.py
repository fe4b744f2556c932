"""Defines the index of a corpus of tokens (`corpus.json`), and the order in which several corpora are mixed."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

CORPUS_SCHEMA = "headway.corpus/1"
INDEX_NAME = "corpus.json"
# By the number of different tokens, as little-endian integers.
TOKEN_BYTES = {"uint16": 2, "uint32": 4}
END_BYTES = 8
# Places after which a mixture repeats itself: of the smallest weight that counts, and of the memory for the order.
LARGEST_PERIOD = 1 << 14


@dataclass(frozen=True)
class Shard:
    """Two files. `<name>.tokens` has the tokens of whole documents, one after the other; `<name>.ends` for each document the
    number of tokens up to its end, in 64 bits.

    `largest` is the largest token. The hashes are XXH3 of 128 bits, in hexadecimal digits.
    """

    name: str
    tokens: int
    documents: int
    largest: int
    tokens_hash: str
    ends_hash: str

    def sizes(self, dtype: str) -> dict[str, int]:
        """Return the size in bytes of each file, by its name."""
        return {f"{self.name}.tokens": self.tokens * TOKEN_BYTES[dtype], f"{self.name}.ends": self.documents * END_BYTES}

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each file, by its name."""
        return {f"{self.name}.tokens": self.tokens_hash, f"{self.name}.ends": self.ends_hash}


@dataclass(frozen=True)
class CorpusIndex:
    """A folder of shards, made by `headway prepare`; their order is that of the documents.

    `tokenizer` is the SHA-256 of the tokenizer's file, `vocab_size` its largest token plus 1, `end` the token after each
    document, None without one. `source` is a hash over the inputs' names and sizes, and over all that decides what is
    made of them.
    """

    dtype: str
    tokenizer: str
    vocab_size: int
    end: int | None
    source: str
    shards: tuple[Shard, ...]
    schema: str = CORPUS_SCHEMA

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def largest(self) -> int:
        """The largest token of all."""
        return max((shard.largest for shard in self.shards), default=0)

    def windows(self, length: int) -> int:
        """Return how many samples of `length` tokens there are, each with the token that follows its last one."""
        return max(0, (self.tokens - 1) // length)

    def mistakes(self) -> list[str]:
        """Return what no index of `headway prepare` has."""
        found = [] if self.dtype in TOKEN_BYTES else [f"its tokens are `{self.dtype}`, none of {', '.join(TOKEN_BYTES)}"]
        if not self.shards:
            found.append("it has no shards")
        names = [shard.name for shard in self.shards]
        if len(set(names)) < len(names) or any("/" in name or not name for name in names):
            found.append("its shards have no names of their own")
        return found


class Mixture:
    """The order of several corpora, by their weights: each place of the endless sequence of samples has a corpus.

    Up to any place, a corpus has been chosen its share of the times, give or take less than one: the chairman assignment
    (Tijdeman, Discrete Mathematics 32, 1980, p. 323). The order repeats itself after `period` places.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises ValueError for a weight that is too small compared with the others."""
        self.shares = _whole_shares(weights)
        self.period = sum(self.shares)
        self._order = _chairmen(tuple(self.shares))
        # At each place, how often its corpus comes before it in the period.
        self._earlier = []
        counts = [0] * len(self.shares)
        for corpus in self._order:
            self._earlier.append(counts[corpus])
            counts[corpus] += 1

    def at(self, place: int) -> tuple[int, int]:
        """Return the corpus at the place, and how many samples of it come before."""
        rounds, within = divmod(place, self.period)
        corpus = self._order[within]
        return corpus, rounds * self.shares[corpus] + self._earlier[within]

    def counts(self, places: int) -> list[int]:
        """Return how many samples of each corpus the first `places` have."""
        rounds, within = divmod(places, self.period)
        begun = self._order[:within]
        return [rounds * share + begun.count(corpus) for corpus, share in enumerate(self.shares)]


def _whole_shares(weights: Sequence[float]) -> list[int]:
    """Return whole numbers in the weights' proportions. Beyond LARGEST_PERIOD they are rounded, by largest remainders."""
    from fractions import Fraction  # noqa: PLC0415  most jobs have one corpus

    # As the weight is written: 0.1 is one tenth.
    exact = [Fraction(repr(weight)) for weight in weights]
    common = lcm(*(each.denominator for each in exact))
    shares = [int(each * common) for each in exact]
    divisor = gcd(*shares)
    shares = [share // divisor for share in shares]
    if sum(shares) <= LARGEST_PERIOD:
        return shares
    ideal = [each * LARGEST_PERIOD / sum(exact) for each in exact]
    rounded = [int(each) for each in ideal]
    by_remainder = sorted(range(len(ideal)), key=lambda corpus: rounded[corpus] - ideal[corpus])
    for corpus in by_remainder[: LARGEST_PERIOD - sum(rounded)]:
        rounded[corpus] += 1
    if 0 in rounded:
        weight = weights[rounded.index(0)]
        raise ValueError(f"a weight of {weight:g} is less than 1/{LARGEST_PERIOD:,} of all weights")
    return rounded


@functools.cache
def _chairmen(shares: tuple[int, ...]) -> list[int]:
    """Return the corpora of one period: of those that are far enough behind their share, the one that must come soonest."""
    total, others = sum(shares), 2 * len(shares) - 2
    if not others:
        return [0]
    order: list[int] = []
    counts = [0] * len(shares)
    # Divides by the share, in whole numbers.
    factors = [lcm(*shares) // share for share in shares]
    for place in range(1, total + 1):
        # Times total * others, so that all numbers are whole.
        behind = [(share * place - count * total) * others for share, count in zip(shares, counts, strict=True)]
        late = [corpus for corpus, each in enumerate(behind) if each >= total]
        slack = total * (others - 1)
        chosen = min(late, key=lambda corpus: ((slack - behind[corpus]) * factors[corpus], corpus))
        order.append(chosen)
        counts[chosen] += 1
    return order
