"""Renders the data of a job's shell script: the environment of its ranks, and `open_run` with run.json and the spec."""

from pathlib import Path

from headway.jobspec.json_text import json_text
from headway.jobspec.plan import JobPlan, to_json
from headway.jobspec.resolve.placement import USER
from headway.templates.shell import Shell, quote, render_shell

_SECRETS = Path(__file__).parent / "secrets.sh.j2"
_TEMPLATE = Path(__file__).parent / "data.sh.j2"


def take_secrets(plan: JobPlan) -> Shell | None:
    """Return lines of shell that export the job's secrets; None without any."""
    return Shell(render_shell(_SECRETS, names=plan.secrets)) if plan.secrets else None


def script_data(plan: JobPlan, *, opens: bool = True) -> Shell:
    """Return lines of shell that a script has once, after its function `main` and before its call.

    They define `open_run`; where the script has no Python, `write_job`, which leaves that to the runner.
    """
    run_json, spec_json = Shell(to_json(plan.run)), Shell(json_text(plan.spec_without_run))
    return Shell(render_shell(_TEMPLATE, plan=plan, opens=opens, writes=not opens, run_json=run_json, spec_json=spec_json))


def runs_word(plan: JobPlan) -> Shell:
    """Return the folder of the runs as a word of shell, with the name of the user who runs the script."""
    return Shell('"$(id -un)"'.join(quote(part) if part else "" for part in plan.runs.split(USER)))
