"""Prints what `headway plan` answers about a job beyond its plan: the estimate, other layouts, other numbers of GPUs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.cli.forecast import Forecast
from headway.cli.terminal import print_line
from headway.cli.views.estimates import estimate_json, memory_json, print_estimate, print_memory
from headway.cli.views.plan_scaling import print_scaling, scaling_json
from headway.cli.views.plan_search import print_search, search_json
from headway.compile import PlannedJob
from headway.planner.from_plan import framework_of

if TYPE_CHECKING:
    from rich.console import Console


def print_forecast(console: "Console", forecast: Forecast, planned: PlannedJob) -> None:
    """The answers, one below the other."""
    if forecast.estimate is None:
        if forecast.memory is None:
            console.print()
            print_line(console, f"estimate: none: {forecast.lacks}", hang=2)
        else:
            print_memory(console, forecast.memory, framework_of(planned.plan), forecast.lacks)
        return
    group = planned.cluster.group(planned.plan.group)
    print_estimate(console, forecast.estimate, planned.plan, group, forecast.calibrated)
    if forecast.search is not None:
        print_search(console, forecast.search, forecast.estimate)
    if forecast.scaling:
        print_scaling(console, forecast.scaling)


def forecast_json(forecast: Forecast) -> Mapping[str, Any]:
    """The answers as JSON."""
    return {
        "estimate": None if forecast.estimate is None else estimate_json(forecast.estimate),
        **({} if forecast.memory is None else {"memory": memory_json(forecast.memory)}),
        "calibrated": forecast.calibrated,
        **({} if forecast.search is None else {"search": search_json(forecast.search)}),
        **({} if not forecast.scaling else {"scaling": scaling_json(forecast.scaling)}),
    }
