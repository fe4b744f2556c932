"""Host memory of a node: each part by name, and what a checkpoint's copies come to."""

from dataclasses import replace

from headway.planner.memory.host import HostLoad, host_bytes_per_node, host_memory, rank_checkpoint_bytes
from headway.planner.memory.ledger import checkpoint_bytes
from headway.planner.training import Degrees
from tests.planner.test_memory import LLAMA, training

MIB = 1 << 20
STEP = training("torchtitan", LLAMA, degrees=Degrees(dp_shard=16), micro=2, sequence=4096)
IDLE = HostLoad(staged=0, peers=0, workers=0)


def test_a_node_that_writes_no_checkpoint_holds_its_system_and_a_process_a_rank() -> None:
    assert host_memory(STEP, IDLE) == (("operating system and agents", 16384 * MIB), ("processes of the ranks", 8 * 2272 * MIB))


def test_a_staged_checkpoint_takes_each_ranks_part_of_12_bytes_a_parameter() -> None:
    assert rank_checkpoint_bytes(STEP) == 12 * LLAMA.parameters / 16
    staged = dict(host_memory(STEP, replace(IDLE, staged=1)))["checkpoints being written, page-locked"]
    assert staged == checkpoint_bytes(STEP) / 2


def test_replicas_do_not_write_the_checkpoint_again_so_that_a_rank_has_the_part_of_its_replica() -> None:
    copies = replace(STEP, degrees=Degrees(dp_replicate=2, dp_shard=8))
    assert rank_checkpoint_bytes(copies) == 12 * LLAMA.parameters / 8


def test_a_copy_for_a_peer_takes_as_much_as_the_ranks_own() -> None:
    alone, with_peer = (
        host_bytes_per_node(STEP, replace(IDLE, staged=1)),
        host_bytes_per_node(STEP, replace(IDLE, staged=1, peers=1)),
    )
    assert with_peer - alone == checkpoint_bytes(STEP) / 2


def test_workers_hold_the_microbatches_that_they_read_ahead() -> None:
    found = dict(host_memory(STEP, HostLoad(staged=0, workers=4, prefetched=3)))
    assert found["microbatches read ahead"] == 8 * 4 * 3 * 2 * 4097 * 8
    assert found["processes that load data"] == 8 * 4 * 1068 * MIB


def test_a_job_smaller_than_a_node_counts_its_own_ranks() -> None:
    one = replace(STEP, degrees=Degrees())
    assert dict(host_memory(one, IDLE))["processes of the ranks"] == 2272 * MIB


def test_page_cache_is_what_the_caller_says() -> None:
    assert dict(host_memory(STEP, replace(IDLE, page_cache=5 * MIB)))["page cache"] == 5 * MIB
