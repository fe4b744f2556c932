"""Defines which replica groups of a job train together, as one word of the heartbeat page."""

from dataclasses import dataclass

# Bits of the word for replica groups; the rest count the changes.
MOST_REPLICAS = 40
_MASK = (1 << MOST_REPLICAS) - 1


@dataclass(frozen=True)
class Members:
    """The replica groups that train together, in order; `epoch` counts the changes since the generation began with all of them."""

    epoch: int
    replicas: tuple[int, ...]

    @classmethod
    def everyone(cls, count: int) -> "Members":
        """Return all of `count` replica groups, with which a generation begins."""
        return cls(0, tuple(range(count)))

    @classmethod
    def of_word(cls, word: int, count: int) -> "Members":
        """Return what the word of a rank's line means; 0 is written when a generation begins."""
        if word == 0:
            return cls.everyone(count)
        return cls(word >> MOST_REPLICAS, tuple(replica for replica in range(count) if word >> replica & 1))

    @property
    def word(self) -> int:
        """One word, so that a single store changes both."""
        return self.epoch << MOST_REPLICAS | sum(1 << replica for replica in self.replicas) & _MASK if self.epoch else 0

    def after(self, replicas: "set[int]") -> "Members":
        """Return the next members."""
        return Members(self.epoch + 1, tuple(sorted(replicas)))
