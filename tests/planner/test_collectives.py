"""Collective operations: placement of groups, bytes sent by each rank, and limits by published bus bandwidths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.planner.speed.collectives import Group, Links, groups_of, links_of
from headway.planner.speed.speed import LinkSpeed, NetworkSpeed, constants
from headway.planner.training import Degrees, Network

NODES = Network(8, 8, 450e9, 50e9, 8, "infiniband")
RACKS = replace(NODES, gpus_per_node=4, scale_up_domain=72)
# No latency, full speed: 100 GB/s inside a domain of 8, 10 GB/s per adapter.
IDEAL = Links(LinkSpeed(1.0, 1.0, 1.0, 0.0, 0.0), NetworkSpeed(1.0, 1.0, 0.0), 100e9, 10e9, 1.0)
groups = st.builds(Group, size=st.sampled_from([2, 4, 8, 16, 64, 512]), local=st.sampled_from([1, 2]))


def test_groups_fill_a_domain_from_the_inside_out() -> None:
    found = groups_of(Degrees(tp=4, cp=2, dp_shard=4, dp_replicate=2, pp=2, ep=8), NODES)
    assert found.tp == Group(4, 4)
    assert found.cp == Group(2, 2)
    assert found.shard == Group(8, 2)
    assert (found.replicate, found.pp) == (Group(2, 1), Group(2, 1))
    assert found.data == Group(16, 2)
    assert (found.ep, found.expert_dp) == (Group(8, 8), Group(8, 1))


def test_group_larger_than_its_domain_spans_several() -> None:
    found = groups_of(Degrees(tp=16, dp_shard=4), NODES).tp
    assert (found, found.domains) == (Group(16, 8), 2)
    assert groups_of(Degrees(tp=16, dp_shard=4), RACKS).tp.domains == 1


@pytest.mark.parametrize("operation", [IDEAL.all_reduce, IDEAL.all_gather, IDEAL.all_to_all, IDEAL.send])
def test_single_rank_sends_nothing(operation: object) -> None:
    assert callable(operation)
    assert operation(Group(1, 1), 1e9) == 0


def test_transfer_time_follows_from_the_bytes_and_speed_of_each_rank() -> None:
    inside, across = Group(8, 8), Group(4, 1)
    assert IDEAL.all_gather(inside, 8e9) == pytest.approx(7e9 / 100e9)
    assert IDEAL.all_reduce(inside, 8e9) == pytest.approx(14e9 / 100e9)
    assert IDEAL.all_gather(across, 4e9) == pytest.approx(3e9 / 10e9)
    assert IDEAL.all_to_all(across, 4e9) == pytest.approx(3e9 / 10e9)
    assert IDEAL.send(across, 1e9) == pytest.approx(0.1)


def test_ring_between_domains_uses_the_adapters_of_all_local_ranks() -> None:
    alone, four = IDEAL.all_gather(Group(16, 1), 16e9), IDEAL.all_gather(Group(16, 4), 16e9)
    assert alone == pytest.approx(4 * four)
    # Sixteen ranks of two nodes have 80 GB/s, less than the 100 GB/s inside.
    assert IDEAL.all_gather(Group(16, 8), 16e9) == pytest.approx(15e9 / 80e9)


def test_all_to_all_inside_and_between_domains_overlaps() -> None:
    assert IDEAL.all_to_all(Group(16, 8), 16e9) == pytest.approx(8e9 / 10e9)
    assert replace(IDEAL, oversubscription=2.0).all_to_all(Group(16, 8), 16e9) == pytest.approx(16e9 / 10e9)


def test_ring_latency_grows_with_hops_and_that_of_a_tree_with_their_log() -> None:
    links = replace(IDEAL, up=LinkSpeed(1.0, 1.0, 1.0, 8.0, 2.0), out=NetworkSpeed(1.0, 1.0, 10.0))
    assert links.all_gather(Group(8, 8), 0.0) == pytest.approx((8 + 7 * 2) * 1e-6)
    assert links.all_gather(Group(16, 8), 0.0) == pytest.approx((8 + 14 * 2 + 10) * 1e-6)
    assert links.all_reduce(Group(512, 8), 0.0) == pytest.approx((8 + 2 * (10 * 6 + 2 * 7)) * 1e-6)


@given(group=groups, size=st.floats(1e3, 1e11))
def test_more_bytes_never_take_less_time(group: Group, size: float) -> None:
    links = links_of(gpus()["H100-SXM-80"], NODES, constants())
    for operation in (links.all_reduce, links.all_gather, links.all_to_all, links.send):
        assert 0 < operation(group, size) <= operation(group, 2 * size)


# stas00/ml-engineering: network/README.md: bus bandwidths in a node, of a ring, in GB/s.
@pytest.mark.parametrize(("gpu", "ring"), [("A100-SXM-80", 232), ("H100-SXM-80", 370), ("B200-180", 682), ("MI300X-192", 313)])
def test_ring_during_training_is_at_most_as_fast_as_published_alone(gpu: str, ring: float) -> None:
    model = gpus()[gpu]
    network = replace(NODES, scale_up_bytes_s=model.scale_up_gb_s * 1e9 / 2)
    seconds = links_of(model, network, constants()).all_gather(Group(8, 8), 8e9)
    assert 0.5 * ring < 7 / seconds <= 1.02 * ring
