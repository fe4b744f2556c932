"""The limits that every operating system states in its row of the table are checked in one place."""

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem, Severity
from headway.templates.cluster import check_switches
from headway.templates.ports import PortPlace, place_of
from headway.templates.switches import SWITCHES
from tests.templates.test_sonic import cluster

ROUTED = [name for name, kind in SWITCHES.items() if "roce" in kind.transports]
MODELS = {"nvue": "SN5400", "eos": "7060X6-64PE"}


def fabric(kind: str, **given: Any) -> ClusterPlan:
    return cluster(**{"model": MODELS.get(kind, "SN5400"), "os": [{"kind": kind}], **given})


def problems(kind: str, plan: ClusterPlan) -> list[Problem]:
    chosen: BaseModel = SWITCHES[kind].options()
    return [each for each in check_switches(plan, {("rails", kind): chosen}) if each.is_error]


@pytest.mark.parametrize("kind", ROUTED)
def test_more_uplinks_than_equal_paths_are_a_problem_only_of_a_leaf(kind: str) -> None:
    plan, paths, title = fabric(kind, classes=[]), SWITCHES[kind].most_paths, SWITCHES[kind].title
    assert paths is not None
    leaf, spine = plan.switches[0], plan.switches[-1]
    wide = tuple(replace(leaf.uplinks[0], index=index, name=f"Ethernet{8 * index}") for index in range(paths + 1))
    there = [each for each in problems(kind, plan) if each.code == "HW513"]
    (found,) = (each for each in problems(kind, replace(plan, switches=(replace(leaf, ports=wide),))) if each.code == "HW513")
    assert (there, found.path) == ([], ("fabrics", 1, "switches", "spines"))
    assert found.message == f"{title} spreads traffic over at most {paths} paths, but a leaf has {paths + 1} uplinks"
    for switch in (replace(leaf, ports=wide[:-1]), replace(spine, ports=wide)):
        assert [each for each in problems(kind, replace(plan, switches=(switch,))) if each.code == "HW513"] == []


@pytest.mark.parametrize("kind", [kind for kind in ROUTED if SWITCHES[kind].host_name_length])
def test_name_longer_than_a_host_name_is_a_problem(kind: str) -> None:
    found = check_switches(fabric(kind, fabric="f" * 60), {("f" * 60, kind): SWITCHES[kind].options()})
    length = SWITCHES[kind].host_name_length
    message = f"{SWITCHES[kind].title} accepts host names of at most {length} characters, but `{'f' * 60}-leaf-1` has 67"
    assert message in {each.message for each in found}


@pytest.mark.parametrize("kind", ROUTED)
def test_balancing_scheme_that_the_system_does_not_have_is_a_problem(kind: str) -> None:
    has = SWITCHES[kind].balancing or ()
    for scheme in ("ecmp", "ucmp", "qp-hash", "dlb", "adaptive", "spray"):
        found = [each for each in problems(kind, fabric(kind, balancing=scheme)) if each.path == ("fabrics", 1, "balancing")]
        assert (scheme in has) == (found == [])


@pytest.mark.parametrize(("kind", "vendor", "other"), [("nvue", "NVIDIA", "7060X6-64PE"), ("eos", "Arista", "SN5600")])
def test_system_requires_a_supported_switch_model(kind: str, vendor: str, other: str) -> None:
    title = SWITCHES[kind].title
    ((path, message),) = {(each.path, each.message) for each in problems(kind, fabric(kind, model=None))}
    assert path == ("fabrics", 1, "switches")
    assert message == f"the names of ports under {title} follow from the switches' model, and none is set"
    for model, maker in ((other, f"of {'Arista' if kind == 'nvue' else 'NVIDIA'}"), ("X1", "that the catalogue does not have")):
        found = {(each.path, each.message) for each in problems(kind, fabric(kind, model=model))}
        message = f"headway renders {title} for models of {vendor}, and the `{model}` is one {maker}"
        place = ("model",) if model == "X1" else ("os", 0, "kind")
        assert (("fabrics", 1, "switches", *place), message) in found


def test_cage_is_split_into_at_most_four_ports() -> None:
    for kind in ("nvue", "eos"):
        assert problems(kind, fabric(kind, lanes=2, speed="100Gb/s")) == []
        found = {each.path for each in problems(kind, fabric(kind, lanes=1, speed="50Gb/s"))}
        assert ("fabrics", 1, "switches", "lanes") in found
    assert problems("nvue", fabric("nvue", model="SN3700", lanes=1, speed="50Gb/s")) == []


@pytest.mark.parametrize("kind", ["nvue", "eos"])
def test_fabric_without_a_base_has_one_warning(kind: str) -> None:
    plan = fabric(kind)
    (found,) = check_switches(plan, {("rails", kind): SWITCHES[kind].options()})
    assert (found.code, found.severity) == ("HW513", Severity.WARNING)
    assert found.path == ("fabrics", 1, "switches", "os", 0, "kind")


def test_position_of_a_port_follows_from_the_lanes_of_its_cage() -> None:
    assert place_of("Ethernet260", 4, 8) == PortPlace(33, 1, 2, 4)
    assert place_of("Ethernet260", 4, 4) == PortPlace(66, 0, 1, 0)
    names = {kind: SWITCHES[kind].port_name for kind in ("nvue", "eos")}
    assert {kind: name(PortPlace(33, 1, 2, 4)) for kind, name in names.items() if name} == {
        "nvue": "swp33s1",
        "eos": "Ethernet33/5",
    }
