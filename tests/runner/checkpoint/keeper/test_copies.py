"""Tests which copies of its partners' captures a node holds: the newest two of each rank, each once."""

from headway.runner.checkpoint.keeper.copies import Copies, Copy
from headway.runner.checkpoint.keeper.memory import KeeperMemory
from headway.runner.contract import CheckpointId

SIZE = 4096


def kept(copies: Copies, rank: int, step: int, generation: int = 1, part: str = "") -> Copy:
    """Receive a capture's copy."""
    region = copies.region(rank, generation, SIZE)
    copy = Copy(rank, CheckpointId(step, generation), SIZE, b"", part or str(step), region)
    copies.keep(copy)
    return copy


def held(copies: Copies) -> list[tuple[int, int, str]]:
    return [(each.rank, each.step, each.part_xxh3_128) for each in copies.holdings()]


def test_the_newest_two_copies_of_each_rank_are_kept() -> None:
    memory = KeeperMemory()
    copies = Copies(memory)
    for step in (5, 10, 15):
        for rank in (2, 3):
            kept(copies, rank, step)
    assert held(copies) == [(2, 10, "10"), (3, 10, "10"), (2, 15, "15"), (3, 15, "15")]
    assert memory.taken_bytes == 4 * SIZE


def test_a_capture_sent_again_replaces_its_copy() -> None:
    memory = KeeperMemory()
    copies = Copies(memory)
    kept(copies, 2, 5)
    kept(copies, 2, 10, part="first")
    kept(copies, 2, 10, part="again")
    # Room for one more was made before it was known which copy arrives.
    assert held(copies) == [(2, 10, "again")]
    assert memory.taken_bytes == SIZE


def test_a_copy_of_another_step_is_kept_with_a_new_one() -> None:
    copies = Copies(KeeperMemory())
    kept(copies, 2, 5)
    kept(copies, 2, 10)
    assert held(copies) == [(2, 5, "5"), (2, 10, "10")]


def test_a_copy_keeps_its_memory_while_it_is_read() -> None:
    memory = KeeperMemory()
    copies = Copies(memory)
    kept(copies, 2, 5)
    read = copies.find(2, CheckpointId(5, 1))
    assert read is not None
    assert copies.find(2, CheckpointId(5, 2)) is None
    kept(copies, 2, 10)
    kept(copies, 2, 15)
    assert held(copies) == [(2, 10, "10"), (2, 15, "15")]
    assert memory.taken_bytes == 3 * SIZE
    copies.release(read)
    assert memory.taken_bytes == 2 * SIZE


def test_copies_are_dropped_once_the_ranks_new_partner_has_both() -> None:
    copies = Copies(KeeperMemory())
    kept(copies, 7, 5)
    kept(copies, 2, 10, generation=2)
    assert [rank for rank, *_ in held(copies)] == [7, 2]
    kept(copies, 2, 15, generation=2)
    assert [rank for rank, *_ in held(copies)] == [2, 2]
