"""What a script's arguments cannot be filled with, and what of the job no argument hands to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.templates.trainers.script.arguments import Value, mistakes, names_in, section_of, values
from headway.templates.trainers.script.options import ScriptOptions

_ARGV = ("trainer", "options", "argv")
# How the numbers are computed and saved: a script does of it what its arguments say. (Model, layout and batch describe it for the plan.)
_HANDED_OVER = ("precision", "recompute", "compile", "overlap", "optimizer", "checkpoint")


def check(options: ScriptOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Every argument finds its values, and every part of the job that only a trainer can carry out finds an argument."""
    known = values(plan)
    for index, argument in enumerate(options.argv):
        for message, hint in mistakes(argument, known):
            yield Problem("HW312", JOB, (*_ARGV, index), message, hint)
    if options.argv[0] == "-m":
        yield Problem("HW210", JOB, (*_ARGV, 0), "`-m` in place of the script", "write `module: true`, and the module first")
    yield from _check_handed_over(options, plan, known)


def _check_handed_over(options: ScriptOptions, plan: JobPlan, known: Mapping[str, Value | None]) -> Iterator[Problem]:
    used = {section_of(name) for argument in options.argv for name in names_in(argument)}
    for section in _HANDED_OVER:
        if section not in used and _is_given(plan.spec[section]):
            message = f"nothing carries out `{section}`: no argument of the script has a value of it"
            example = next((name for name in known if section_of(name) == section and known[name] is not None), None)
            hint = f"hand it over, for example as `{{{example}}}`, or leave it out" if example else "leave it out"
            yield Problem("HW313", JOB, (section,), message, hint, Severity.WARNING)


def _is_given(value: Any) -> bool:
    return any(map(_is_given, value.values())) if isinstance(value, dict) else value is not None
