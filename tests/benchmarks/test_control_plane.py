"""The control plane's claims: compared with torchrun's rendezvous, or alone if its agents do not find each other in time."""

import json
from collections.abc import Iterator

import pytest

from benchmarks.claim import Claim, Compared, MeasureError, Within, spread, within
from benchmarks.control_plane.__main__ import claims
from benchmarks.control_plane.alone import Alone, GaveUp, report_all
from benchmarks.control_plane.peer import GaveUpError, measure

PAIR = (spread([0.25]), spread([0.5]))


def alone(kind: type[Claim], goal: float, holds: bool | None) -> Alone:
    return Alone(kind, "a task", spread([0.25]), "a peer", goal, holds, "here")


def test_claim_without_a_peer_is_printed_without_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    results: list[Claim | Alone | GaveUp] = [
        GaveUp("a peer", "too slow"),
        alone(Compared, 1.0, None),
        alone(Within, 5.0, True),
        within("it", PAIR, "a peer", 5.0, "here"),
    ]
    assert report_all(results, as_json=False) == 0
    assert capsys.readouterr().out == (
        "the peer gave up: a peer: too slow\n"
        "not judged: a task: 0.250 s (0.250 to 0.250), goal at most 1 times the peer's; a peer: gave up (here)\n"
        "holds: a task: 0.250 s (0.250 to 0.250), goal at most 5 s; a peer: gave up (here)\n"
        "holds: it: 0.250 s (0.250 to 0.250), goal at most 5 s; a peer: 0.500 s (0.500 to 0.500); ratio 0.50 (here)\n"
    )


def test_claim_without_a_peer_has_the_same_json_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        report_all(
            [GaveUp("a peer", "too slow"), alone(Compared, 1.0, None), within("it", PAIR, "a peer", 5.0, "here")], as_json=True
        )
        == 0
    )
    gave_up, without, paired = map(json.loads, capsys.readouterr().out.splitlines())
    assert gave_up == {"peer_name": "a peer", "gave_up": "too slow"}
    assert list(without) == list(paired)
    assert (without["peer"], without["ratio"], without["holds"]) == (None, None, None)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([alone(Compared, 1.0, None)], 0),
        ([alone(Within, 0.1, False), alone(Within, 5.0, True)], 1),
        ([alone(Within, 5.0, True), within("it", PAIR, "a peer", 0.1, "here")], 1),
    ],
)
def test_only_judged_claims_decide_the_exit_code(results: list[Claim | Alone], code: int) -> None:
    assert report_all(results, as_json=False) == code


def test_unmeasurable_claim_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[Alone]:
        yield alone(Within, 5.0, True)
        raise MeasureError("no coordinator")

    assert report_all(broken(), as_json=False) == 3
    assert capsys.readouterr().err == "benchmark: no coordinator\n"


@pytest.mark.slow
def test_peer_gives_up_if_its_agents_do_not_join_in_time() -> None:
    with pytest.raises(GaveUpError, match=r"2 agents did not all join within 0 s: \w+Error"):
        measure(2, 0.1, 0.0)


@pytest.mark.slow
@pytest.mark.variant
def test_headway_is_measured_alone_after_the_peer_gave_up() -> None:
    gave_up, *results = claims(nodes=16, peers=8, seconds=0.2, patience_s=0.0)
    assert isinstance(gave_up, GaveUp)
    assert all(isinstance(each, Alone) for each in results)
    assert [each.holds is None for each in results if isinstance(each, Alone)] == [True, False, False, False, False, False]


@pytest.mark.slow
def test_headway_is_compared_with_a_peer_whose_agents_join() -> None:
    results = list(claims(nodes=16, peers=8, seconds=0.2))
    assert [isinstance(each, Claim) and each.ratio >= 0 for each in results] == [True] * 6
