"""Tests the records that other folders share with the runner: valid ones survive a round trip, and others are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    SECTIONS,
    VERDICTS,
    Batch,
    Change,
    Checkpoint,
    Data,
    Exit,
    HeartbeatPage,
    Mesh,
    MetricsLine,
    Model,
    Optimizer,
    RecordError,
    RunConfig,
    Store,
    Tier,
    Timeout,
    Trainer,
    Verdict,
    bind,
    coordinates,
    cost_by_kind,
    from_json,
    node_of,
    slot_of,
    to_json,
)

FULL = RunConfig(
    slots=2,
    procs_per_slot=4,
    mesh=Mesh(pp=2, dp_shard=2, tp=2),
    trainer=Trainer("builtin", {"compile": False, "nested": {"list": [1, 2.5, None]}}),
    spec_hash="0123456789abcdef",
    seed=7,
    steps=300,
    model=Model(256, 4, 64, 4, 2, 192, dropout=0.1),
    data=Data("files", {"paths": ["/a/*.txt"], "limit_bytes": 10}),
    batch=Batch(16, 2, 128),
    optimizer=Optimizer(3e-4, warmup_steps=10),
    checkpoint=Checkpoint((Tier("memory", 5, keep=1), Tier("shared", every_s=900.0, keep=2)), 1000, 1 << 40),
    history=(Change(100, rollback_to=50, skip_samples=64, set={"optimizer.lr": 1e-4, "steps": 400}),),
    store=Store("posix", "/runs/r/shared"),
    run="quickstart-0123abcd-1",
)
SMALL = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("script"), spec_hash="")


def changed(config: RunConfig, **fields: Any) -> str:
    return json.dumps({**json.loads(to_json(config)), **fields})


@pytest.mark.parametrize("config", [FULL, SMALL], ids=["full", "small"])
def test_run_json_is_read_back_equal(config: RunConfig) -> None:
    assert from_json(RunConfig, to_json(config)) == config


def test_equal_records_have_the_same_bytes_whatever_their_mapping_order() -> None:
    turned = replace(FULL, timeouts=dict(reversed(list(FULL.timeouts.items()))))
    assert to_json(turned) == to_json(FULL)


@pytest.mark.parametrize("schema", ["headway.run/0", "headway.run/2", "", None, 1])
def test_an_unknown_schema_is_refused_by_name(schema: object) -> None:
    with pytest.raises(RecordError, match=r"RunConfig: unknown schema .*; expected 'headway.run/1'") as refused:
        from_json(RunConfig, changed(FULL, schema=schema))
    assert repr(schema) in str(refused.value)


def test_a_missing_schema_is_refused() -> None:
    data = json.loads(to_json(FULL))
    del data["schema"]
    with pytest.raises(RecordError, match="schema None"):
        from_json(RunConfig, json.dumps(data))


def test_an_unknown_field_is_refused_by_name_and_path() -> None:
    with pytest.raises(RecordError, match=r"RunConfig: unknown field 'slot'"):
        from_json(RunConfig, changed(FULL, slot=1))
    with pytest.raises(RecordError, match=r"RunConfig\.mesh: unknown field 'ep'"):
        from_json(RunConfig, changed(FULL, mesh={"ep": 2}))


def test_a_missing_field_is_refused_by_name_and_path() -> None:
    data = json.loads(to_json(FULL))
    del data["slots"]
    with pytest.raises(RecordError, match="RunConfig: field 'slots' is missing"):
        from_json(RunConfig, json.dumps(data))
    with pytest.raises(RecordError, match=r"RunConfig\.batch: field 'sequence_length' is missing"):
        from_json(RunConfig, changed(FULL, batch={"global_sequences": 1, "micro_sequences": 1}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": "2"}, "RunConfig.slots: expected int, found str"),
        ({"slots": True}, "RunConfig.slots: expected int, found bool"),
        ({"slots": 2.0}, "RunConfig.slots: expected int, found float"),
        ({"slots": None}, "RunConfig.slots: expected int, found NoneType"),
        ({"seed": []}, "RunConfig.seed: expected int, found list"),
        ({"mesh": 4}, "RunConfig.mesh: expected dict, found int"),
        ({"checkpoint": {"tiers": [{"kind": "shared", "every_steps": "5"}]}}, "RunConfig.checkpoint.tiers[0].every_steps"),
        ({"timeouts": {"join": {"floor_s": "10"}}}, "RunConfig.timeouts.join.floor_s: expected float, found str"),
        ({"data": {"kind": "files", "options": []}}, "RunConfig.data.options: expected dict, found list"),
    ],
)
def test_a_wrong_type_is_refused_by_path(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as refused:
        from_json(RunConfig, changed(FULL, **fields))
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,"])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="not JSON"):
        from_json(RunConfig, text)


def test_an_integer_is_accepted_as_a_float() -> None:
    read = from_json(RunConfig, changed(FULL, grace_s=5))
    assert (read.grace_s, type(read.grace_s)) == (5.0, float)


def test_a_record_with_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(MetricsLine(0.0, 0.0, 0, 1, 1, float("nan"), 0.0, 1, 0.1, 1))


def test_a_verdict_is_read_back_equal() -> None:
    verdict = Verdict("r", 0, 3, "stop", "exit code 1", 83, rank=1, node=0, suspects=(0, 2), step=9, evidence=("a", "b"))
    assert from_json(Verdict, to_json(verdict)) == verdict


def test_every_exit_code_has_a_description_and_its_documented_number() -> None:
    assert {int(code) for code in VERDICTS} == {0, 80, 81, 82, 83, 84, 85} == {int(code) for code in Exit}


# --- ranks and slots --------------------------------------------------------------------------------------------------

degrees = st.integers(1, 4)
meshes = st.builds(Mesh, pp=degrees, dp_replicate=degrees, dp_shard=degrees, cp=degrees, tp=degrees)


@pytest.mark.slow
@settings(deadline=None)
@given(meshes)
def test_coordinates_are_a_bijection_with_tp_innermost(mesh: Mesh) -> None:
    places = [coordinates(mesh, rank) for rank in range(mesh.world_size)]
    assert all(tuple(place) == mesh.axes for place in places)
    # Read as digits, outermost first, they count upwards: each place occurs once, and the last axis changes first.
    assert [tuple(place.values()) for place in places] == sorted({tuple(place.values()) for place in places})
    assert all(0 <= place[axis] < getattr(mesh, axis) for place in places for axis in mesh.axes)


domains = st.sampled_from(["a", "b", "c", None])


@st.composite
def bindings(draw: st.DrawFn) -> tuple[int, dict[int, str | None], dict[int, int], int]:
    """Slots, live nodes with their domains, existing bindings, slots of a segment."""
    slots, segment = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    live = draw(st.dictionaries(st.integers(0, 20), domains, max_size=18))
    nodes = draw(st.permutations(range(21)))
    held = draw(st.sets(st.integers(0, slots - 1)))
    return slots, live, dict(zip(sorted(held), nodes, strict=False)), segment


@pytest.mark.slow
@settings(deadline=None)
@given(bindings())
def test_bind_gives_each_slot_a_separate_live_node_and_moves_no_live_one(
    case: tuple[int, dict[int, str | None], dict[int, int], int],
) -> None:
    slots, live, held, segment = case
    binding = bind(slots, live, held, segment)
    if len(live) < slots:
        assert binding is None
        return
    assert binding is not None
    assert list(binding.nodes) == list(range(slots))
    assert len({*binding.nodes.values()} & live.keys()) == slots
    assert all(binding.nodes[slot] == node for slot, node in held.items() if node in live)


@settings(deadline=None)
@given(bindings())
def test_slots_outside_their_domain_are_newly_bound_and_share_no_domain(
    case: tuple[int, dict[int, str | None], dict[int, int], int],
) -> None:
    slots, live, held, size = case
    binding = bind(slots, live, held, size)
    for slot in binding.outside if binding else ():
        assert binding is not None
        assert held.get(slot) not in live
        segment = range(slot // size * size, min(slot // size * size + size, slots))
        assert any(live[binding.nodes[other]] != live[binding.nodes[slot]] for other in segment)


@settings(deadline=None)
@given(bindings())
def test_a_required_segment_is_bound_entirely_into_one_domain(
    case: tuple[int, dict[int, str | None], dict[int, int], int],
) -> None:
    slots, live, held, size = case
    binding = bind(slots, live, held, size, required=True)
    if binding is None:
        return
    assert binding.outside == ()
    assert len({*binding.nodes.values()} & live.keys()) == slots
    for first in range(0, slots, size):
        segment = range(first, min(first + size, slots))
        assert len({live[binding.nodes[slot]] for slot in segment}) == 1
        if {held.get(slot) for slot in segment} <= live.keys() and len({live[held[slot]] for slot in segment}) == 1:
            assert [binding.nodes[slot] for slot in segment] == [held[slot] for slot in segment]


@pytest.mark.slow
@settings(deadline=None)
@given(bindings())
def test_required_segments_are_bound_whenever_the_domains_have_room(
    case: tuple[int, dict[int, str | None], dict[int, int], int],
) -> None:
    slots, live, _, size = case
    full, rest = divmod(slots, size)
    counts = [list(live.values()).count(domain) for domain in set(live.values())]
    room = sum(count // size for count in counts)
    possible = room > full or (room == full and any(count % size >= rest for count in (*counts, 0)))
    assert (bind(slots, live, None, size, required=True) is not None) == possible


def test_without_domains_slot_i_is_bound_to_the_ith_lowest_node() -> None:
    binding = bind(3, dict.fromkeys((9, 4, 7, 2)))
    assert binding is not None
    assert (binding.nodes, binding.outside) == ({0: 2, 1: 4, 2: 7}, ())


def test_a_spare_in_the_segments_domain_precedes_a_lower_one_elsewhere() -> None:
    live = {0: "a", 2: "b", 3: "b", 4: "c", 5: "a"}
    binding = bind(4, live, {0: 0, 2: 2, 3: 3}, 2)
    assert binding is not None
    assert (binding.nodes[1], binding.outside) == (5, ())
    del live[5]
    binding = bind(4, live, {0: 0, 2: 2, 3: 3}, 2)
    assert binding is not None
    assert (binding.nodes[1], binding.outside) == (4, (1,))


@pytest.mark.parametrize(
    ("slots", "moved", "slot"),
    [(2, {}, 1), (2, {1: 5}, None), (1, {}, None), (2, {0: 1, 1: 0}, 0), (3, {2: 1, 1: 7}, 2)],
)
def test_a_node_finds_its_slot_by_the_moved_slots(slots: int, moved: dict[int, int], slot: int | None) -> None:
    assert slot_of(1, slots, moved) == slot


@given(st.permutations(range(6)), st.integers(1, 6))
def test_slot_and_node_map_to_each_other(nodes: list[int], slots: int) -> None:
    moved = {slot: node for slot, node in enumerate(nodes[:slots]) if slot != node}
    assert [node_of(slot, moved) for slot in range(slots)] == nodes[:slots]
    assert [slot_of(node, slots, moved) for node in nodes] == [*range(slots), *[None] * (6 - slots)]


# --- cost of failures -------------------------------------------------------------------------------------------------


def test_a_failures_cost_is_its_detection_and_the_next_start() -> None:
    ledger = [
        (1, {"restart": 9.0, "productive": 50.0, "detect": 2.0}),
        (2, {"restart": 3.0, "restore": 1.0, "lost_recompute": 4.0, "productive": 30.0, "hang": 5.0, "detect": 0.5}),
        (3, {"rendezvous": 2.0, "restart": 1.0, "lost_recompute": 6.0, "productive": 10.0, "save_block": 7.0}),
    ]
    assert cost_by_kind(ledger, {1: "crash", 2: "hang"}, {1, 2, 3}) == {"crash": 2.0 + 8.0, "hang": 5.5 + 9.0}


def test_a_generation_that_never_restored_counts_for_the_failure_before_it() -> None:
    ledger = [(1, {"detect": 1.0}), (2, {"restart": 4.0, "detect": 2.0}), (3, {"restart": 8.0}), (4, {"restart": 16.0})]
    assert cost_by_kind(ledger, {1: "crash"}, {1, 3}) == {"crash": 1.0 + 4.0 + 2.0 + 8.0}
    assert cost_by_kind(ledger, {1: "crash", 2: "hang"}, {1, 3}) == {"crash": 1.0 + 4.0, "hang": 2.0 + 8.0}


@pytest.mark.parametrize(("ended_by", "cost"), [({1: "node lost"}, 40.0), ({2: "crash"}, 0.0)])
def test_the_wait_between_two_attempts_counts_for_the_first_ones_failure(ended_by: dict[int, str], cost: float) -> None:
    ledger = [(1, {"productive": 9.0}), (0, {"queue": 40.0}), (2, {"productive": 9.0})]
    assert cost_by_kind(ledger, ended_by, {1, 2}) == dict.fromkeys(ended_by.values(), cost)


def test_steps_repeated_after_the_next_start_count_for_the_last_failure() -> None:
    ledger = [(1, {"productive": 9.0}), (2, {"lost_recompute": 3.0}), (3, {"lost_recompute": 2.0})]
    assert cost_by_kind(ledger, {1: "crash"}, {1, 2, 3}) == {"crash": 5.0}


# --- the heartbeat page -----------------------------------------------------------------------------------------------


def test_ranks_of_a_heartbeat_page_do_not_overlap() -> None:
    page = HeartbeatPage(memoryview(bytearray(HeartbeatPage.bytes_for(3))))
    page.write(1, pid=10, generation=2, step=1 << 40, section=SECTIONS.index("save"), monotonic_ns=5, save_request=1)
    page.write(1, step=7)
    assert page.read(1) == {
        "pid": 10,
        "generation": 2,
        "step": 7,
        "section": 5,
        "monotonic_ns": 5,
        "save_request": 1,
        "pulse": 0,
        "own_ns": 0,
        "members": 0,
    }
    assert set(page.read(0).values()) == set(page.read(2).values()) == {0}


def test_a_word_of_the_heartbeat_page_is_at_its_documented_offset() -> None:
    buffer = bytearray(HeartbeatPage.bytes_for(2))
    HeartbeatPage(memoryview(buffer)).write(1, step=-3)
    assert int.from_bytes(buffer[128 + 16 : 128 + 24], "little", signed=True) == -3
    assert len(buffer) == 256


def test_an_unknown_word_of_the_heartbeat_page_is_refused() -> None:
    page = HeartbeatPage(memoryview(bytearray(HeartbeatPage.bytes_for(1))))
    with pytest.raises(ValueError, match="not in tuple"):
        page.write(0, steps=1)


@pytest.mark.parametrize(
    ("kinds", "buffers", "copies"),
    [((), 0, 0), (("shared",), 2, 0), (("memory", "shared"), 2, 0), (("peer", "shared"), 2, 2), (("peer", "remote"), 3, 2)],
)
def test_tiers_determine_how_many_captures_a_node_holds(kinds: tuple[str, ...], buffers: int, copies: int) -> None:
    checkpoint = Checkpoint(tuple(Tier(kind, 1) for kind in kinds))
    assert (checkpoint.buffers, checkpoint.copies) == (buffers, copies)


def test_a_tier_is_written_every_number_of_steps_or_seconds() -> None:
    assert (Tier("shared", 50).interval_s(2.0), Tier("shared", every_s=900.0).interval_s(2.0)) == (100.0, 900.0)


def test_only_a_remote_tier_has_an_address() -> None:
    assert Checkpoint((Tier("shared", 50),)).remote is None
    assert Checkpoint((Tier("shared", 50), Tier("remote", 100, url="s3://a/b"))).remote == "s3://a/b"


def test_the_last_change_in_effect_determines_the_last_step() -> None:
    longer = Change(300, set={"steps": 400})
    assert SMALL.last_step is None
    assert replace(FULL, history=()).last_step == 300
    assert replace(FULL, history=(longer,)).last_step == 400
    assert replace(FULL, history=(longer, Change(350, rollback_to=200))).last_step == 300


def test_a_run_json_older_than_a_timeout_gets_its_default() -> None:
    older = replace(FULL, timeouts={"join": Timeout(7.0)})
    assert older.timeout_s("join") == 7.0
    for name, timeout in DEFAULT_TIMEOUTS.items():
        if name != "join":
            assert older.timeout_s(name) == timeout.floor_s
