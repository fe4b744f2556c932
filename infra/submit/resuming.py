"""Decides whether a job is still the job of one of its runs, and names a new run."""

import json
from collections.abc import Iterable

from headway.jobspec.change import How, changes
from headway.jobspec.plan import JobPlan
from headway.jobspec.suggest import listed
from headway.runner.contract import RunDirectory


def differs(directory: RunDirectory, plan: JobPlan) -> str | None:
    """Return why the run cannot continue with this plan; None if it can. A run without attempts has nothing to compare with."""
    name = directory.root.name
    attempts = directory.attempt_numbers()
    specs = [spec for attempt in attempts if (spec := directory.at(attempt).spec).is_file()]
    if not specs and attempts and not name.startswith(f"{plan.run_stem}-"):
        return f"run `{name}` was started from another spec and did not record it for comparison; undo the change"
    found = changes(json.loads(specs[-1].read_text()), plan.kept_spec) if specs else []
    if edited := [change.name for change in found if change.how is not How.ANYTIME]:
        return f"the job differs from run `{name}` in {listed(edited)}; run `headway check JOB --run {name}` to see what to do"
    return None


def next_number(stem: str, names: Iterable[str]) -> int:
    """Return the number of the next run `<stem><number>` after those of these names."""
    taken = [name.removeprefix(stem) for name in names if name.startswith(stem)]
    return max((int(number) for number in taken if number.isdecimal()), default=0) + 1
