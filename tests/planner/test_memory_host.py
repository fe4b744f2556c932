"""Host memory of a node: each part by name, and the size of a checkpoint's copies."""

from msgspec.structs import replace

from headway.planner.memory.host import HostLoad, host_bytes_per_node, host_memory, rank_checkpoint_bytes
from headway.planner.memory.ledger import checkpoint_bytes
from headway.planner.training import Degrees
from tests.planner.test_memory import LLAMA, training

MIB = 1 << 20
STEP = training("torchtitan", LLAMA, degrees=Degrees(dp_shard=16), micro=2, sequence=4096)
IDLE = HostLoad(staged=0, peers=0, workers=0)


def test_node_without_checkpoints_holds_its_system_and_rank_processes() -> None:
    assert host_memory(STEP, IDLE) == (("operating system and agents", 16384 * MIB), ("processes of the ranks", 8 * 2272 * MIB))


def test_staged_checkpoint_takes_12_bytes_per_parameter_of_each_rank() -> None:
    assert rank_checkpoint_bytes(STEP) == 12 * LLAMA.parameters / 16
    staged = dict(host_memory(STEP, replace(IDLE, staged=1)))["checkpoints being written, page-locked"]
    assert staged == checkpoint_bytes(STEP) / 2


def test_rank_stages_its_share_of_one_replica() -> None:
    copies = replace(STEP, degrees=Degrees(dp_replicate=2, dp_shard=8))
    assert rank_checkpoint_bytes(copies) == 12 * LLAMA.parameters / 8


def test_copy_for_a_peer_takes_as_much_as_the_own_checkpoint() -> None:
    alone, with_peer = (
        host_bytes_per_node(STEP, replace(IDLE, staged=1)),
        host_bytes_per_node(STEP, replace(IDLE, staged=1, peers=1)),
    )
    assert with_peer - alone == checkpoint_bytes(STEP) / 2


def test_data_workers_hold_the_microbatches_that_they_prefetch() -> None:
    found = dict(host_memory(STEP, HostLoad(staged=0, workers=4, prefetched=3)))
    assert found["microbatches read ahead"] == 8 * 4 * 3 * 2 * 4097 * 8
    assert found["processes that load data"] == 8 * 4 * 1068 * MIB


def test_job_smaller_than_a_node_counts_only_its_ranks() -> None:
    one = replace(STEP, degrees=Degrees())
    assert dict(host_memory(one, IDLE))["processes of the ranks"] == 2272 * MIB


def test_page_cache_is_given_by_the_caller() -> None:
    assert dict(host_memory(STEP, replace(IDLE, page_cache=5 * MIB)))["page cache"] == 5 * MIB
