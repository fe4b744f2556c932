"""Renders a plan as `local/run.sh`."""

from pathlib import Path, PurePosixPath

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.templates.kind import Files
from headway.templates.schedulers.data import runs_word, script_data, take_secrets
from headway.templates.schedulers.local.options import LocalOptions
from headway.templates.shell import render_shell

_TEMPLATE = Path(__file__).parent / "run.sh.j2"


def render(options: LocalOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one script; every slot, and every spare, is a runner process on the loopback address."""
    hosts = ",".join(["127.0.0.1"] * plan.nodes)
    text = render_shell(
        _TEMPLATE,
        plan=plan,
        hosts=hosts,
        runs=runs_word(plan),
        run_name=plan.run_stem,
        data=script_data(plan),
        secrets=take_secrets(plan),
        preparation=plan.preparation,
    )
    return {PurePosixPath("local/run.sh"): text}
