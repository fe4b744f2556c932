"""A switch's file is matched with the plan by its host name or its folder, and matching all files takes one pass over the plan."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headway.jobspec.plan import SwitchPlan
from headway.templates.audit.plan import differences, switch_of
from headway.templates.reading import DeviceView, Reading
from tests.templates.audit.fabric import planned

PLAN = planned("nvue").plan
FIRST, SECOND, *_ = (switch.name for switch in PLAN.switches)


class CountedSwitches(tuple[SwitchPlan, ...]):
    """Counts the switches that are iterated over."""

    seen = 0

    def __iter__(self) -> Iterator[SwitchPlan]:
        for switch in super().__iter__():
            self.seen += 1
            yield switch


def reading(name: str | None) -> Reading:
    return Reading({}, {}, device=DeviceView("nvue", name=name))


@pytest.mark.parametrize(
    ("file", "name", "found"),
    [
        (f"old/{SECOND}/startup.yaml", FIRST, FIRST),
        (f"old/{SECOND}/startup.yaml", "cumulus", SECOND),
        (f"{SECOND}.yaml", None, SECOND),
        (f"{FIRST}/backup/{SECOND}/startup.yaml", None, SECOND),
        ("startup.yaml", "cumulus", None),
    ],
)
def test_switch_of_a_file_follows_from_its_host_name_or_innermost_folder(file: str, name: str | None, found: str | None) -> None:
    switch = switch_of(file, reading(name), PLAN)
    assert (switch.name if switch else None) == found


@pytest.mark.parametrize("copies", [1, 50])
def test_switches_of_the_plan_are_iterated_once_for_all_files(copies: int) -> None:
    switches = CountedSwitches(
        replace(switch, name=f"{switch.name}-{copy}") for copy in range(copies) for switch in PLAN.switches
    )
    plan = replace(PLAN, switches=switches)
    readings = {f"{switch.name}/startup.yaml": reading(switch.name) for switch in tuple(switches)}
    switches.seen = 0
    assert {each.file for each in differences(readings, plan)} == set(readings)
    assert switches.seen <= 3 * len(switches)
