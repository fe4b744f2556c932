"""Disagreements of files that were read back: reported once, at the differing file, or as the broken link of the chain."""

from collections.abc import Mapping

import pytest

from headway.templates import agreement
from headway.templates.agreement import Disagreement, carries_collectives, disagreements
from headway.templates.reading import EcnView, QosView, Reading, RoutingView

from .test_sonic import cluster as sonic_cluster

PFC = {priority: priority == 3 for priority in range(8)}
MARKING = {queue: EcnView(1000, 2000, 5) if queue == 3 else None for queue in range(8)}


def nccl(dscp: int = 26) -> Reading:
    return Reading({}, {"NCCL": QosView(marks={"collectives": dscp})})


def host(dscp: int = 26, priority: int = 3, cnp: int = 48, reacts: bool = True) -> Reading:
    view = QosView(
        marks={"cnp": cnp},
        marks_priority={"cnp": 6},
        priorities={dscp: priority, cnp: 6},
        pfc={each: each == priority for each in range(8)},
        reacts={each: reacts and each == priority for each in range(8)},
    )
    return Reading({}, {"mlx5_0": view, "mlx5_1": view})


def leaf(
    queue: int = 3,
    pauses: int = 3,
    cnp_queue: int = 6,
    marking: Mapping[int, EcnView | None] = MARKING,
    pfc: Mapping[int, bool] = PFC,
) -> Reading:
    view = QosView(
        priorities={26: 3, 48: 6},
        queues={26: queue, 48: cnp_queue, 0: 0},
        groups={26: 3, 48: 0, 0: 0},
        pfc=pfc,
        paused_queues={3: pauses},
        ecn=marking,
    )
    return Reading({}, {"Ethernet0": view})


def found(**readings: Reading) -> list[Disagreement]:
    return list(disagreements(readings))


def test_consistent_files_have_no_disagreement() -> None:
    assert found(env=nccl(), one=host(), two=host(), leaf=leaf(), spine=leaf()) == []


def test_single_file_has_no_disagreement() -> None:
    assert found() == []
    assert found(env=nccl(), other=Reading({})) == []


def test_differing_file_is_reported_once_for_all_its_ends() -> None:
    (alone,) = found(one=host(cnp=50), two=host(), three=host())
    assert (alone.file, alone.end) == ("one", "mlx5_0, mlx5_1")
    assert alone.message == "the DSCP that marks cnp is 50, but 48 in most of the files"


def test_job_with_a_different_dscp_than_the_others_is_found() -> None:
    assert [(each.file, each.end) for each in found(a=nccl(), b=nccl(), c=nccl(34))] == [("c", "NCCL")]


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        ((nccl(), host(), leaf(pfc=dict.fromkeys(range(8), False))), "the PFC of priority 3 is"),
        ((nccl(), host(), leaf(pfc=dict.fromkeys(range(8), False))), "in queue 3, which PFC does not pause"),
        ((nccl(), leaf(queue=5)), "in queue 5, which PFC does not pause"),
        ((nccl(), leaf(pauses=4)), "in queue 3, which PFC does not pause"),
        ((nccl(), host(), leaf(marking=dict.fromkeys(range(8)))), "where packets are not ECN-marked"),
        ((nccl(30), host(), leaf()), "DSCP 30 carries the collectives, but is not mapped to a queue"),
        ((nccl(30), host(), leaf()), "DSCP 30 carries the collectives, but is not mapped to a priority"),
        ((nccl(), host(priority=4), leaf()), "the priority of DSCP 26 is"),
        ((nccl(), host(), leaf(cnp_queue=3)), "wait in queue 3 behind the traffic that they should slow down"),
    ],
)
def test_broken_link_of_the_chain_is_found_without_a_plan(readings: tuple[Reading, ...], message: str) -> None:
    problems = found(**{f"file{index}": reading for index, reading in enumerate(readings)})
    assert [problem for problem in problems if message in problem.message and not problem.doubtful]


def test_fabric_without_any_pfc_or_ecn_is_only_doubtful() -> None:
    lossy = leaf(pfc=dict.fromkeys(range(8), False), marking=dict.fromkeys(range(8)))
    assert [(each.doubtful, each.file) for each in found(env=nccl(), one=lossy)] == [(True, "one"), (True, "one")]


def test_unused_priorities_may_differ() -> None:
    both = {priority: priority in (3, 4) for priority in range(8)}
    assert found(env=nccl(), one=host(), leaf=leaf(pfc=both)) == []


def test_one_of_two_differing_files_names_the_other() -> None:
    (tied,) = found(one=nccl(26), two=nccl(34))
    assert (tied.file, tied.message) == ("two", "the DSCP that marks collectives is 34, but 26 in one")


def test_port_that_differs_from_the_others_of_its_file_is_reported() -> None:
    odd = QosView(queues={26: 4})
    same = QosView(queues={26: 3})
    reading = Reading({}, {"Ethernet0": odd, "Ethernet8": same, "Ethernet16": same})
    assert {(each.end, each.message) for each in found(leaf=reading)} == {
        ("Ethernet0", "the queue of DSCP 26 is 4, but 3 in most of the ends")
    }


def test_chain_has_no_start_unless_a_file_marks_the_collectives() -> None:
    assert not carries_collectives([leaf()])
    assert carries_collectives([leaf(), nccl()])


def test_sender_without_congestion_control_is_found_if_others_have_it() -> None:
    problems = found(env=nccl(), one=host(), two=host(reacts=False), leaf=leaf())
    assert [(each.file, each.message.partition(",")[0]) for each in problems] == [
        ("two", "the congestion control of priority 3 is off"),
        ("two", "senders of DSCP 26 do not react to congestion notifications"),
    ]


def test_files_of_one_switch_must_agree_on_routing() -> None:
    one = RoutingView(4200000001, "10.255.128.0", frozenset({"Ethernet256", "Ethernet264"}), 64)
    two = RoutingView(4200000002, "10.255.128.1", frozenset({"Ethernet256"}), 2)
    readings = {"leaf/config_db.json": Reading({}, routing=one), "leaf/frr.conf": Reading({}, routing=two)}
    problems = list(disagreements(readings))
    assert {problem.file for problem in problems} == {"leaf/frr.conf"}
    assert [problem.message for problem in problems] == [
        "the AS number is 4200000002, but 4200000001 in leaf/config_db.json",
        "the router id is 10.255.128.1, but 10.255.128.0 in leaf/config_db.json",
        "the neighbors are Ethernet256, but Ethernet256, Ethernet264 in leaf/config_db.json",
        "the number of equal paths is 2, but 64 in leaf/config_db.json",
    ]
    unsaid = {"leaf/config_db.json": Reading({}, routing=RoutingView()), "leaf/frr.conf": Reading({}, routing=one)}
    assert list(disagreements(unsaid)) == []
    leaves = {"x/leaf-1.json": Reading({}, routing=one), "x/leaf-2.json": Reading({}, routing=two)}
    assert list(disagreements(leaves)) == []
    elsewhere = {"leaf/config_db.json": Reading({}, routing=one), "other/frr.conf": Reading({}, routing=two)}
    assert list(disagreements(elsewhere)) == []


def test_files_with_equal_views_are_compared_with_the_cluster_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fabric has hundreds of switches, and a tier's have equal queues."""
    plan = sonic_cluster()
    view = QosView(queues={26: 5}, says=frozenset())
    ports = {f"Ethernet{8 * index}": view for index in range(64)}
    files = {f"{switch.name}/{number}/config_db.json": Reading({}, ports) for switch in plan.switches for number in range(8)}
    looked: list[QosView] = []
    facts = agreement.facts

    def counting(found: QosView) -> dict[agreement.Fact, agreement.Value]:
        looked.append(found)
        return facts(found)

    monkeypatch.setattr(agreement, "facts", counting)
    problems = list(disagreements(files, plan))
    assert {each.file for each in problems if "the queue of DSCP 26 is 5" in each.message} == set(files)
    assert len(looked) < 5
