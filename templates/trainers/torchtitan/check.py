"""Reports models and formats for which torchtitan's registry has no function."""

from collections.abc import Iterator

from headway.jobspec.catalog.models import models
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.suggest import listed
from headway.templates.trainers.table import Known
from headway.templates.trainers.torchtitan.options import TorchtitanOptions
from headway.templates.trainers.torchtitan.presets import REGISTRY
from headway.templates.trainers.torchtitan.table import CONVERTED

_OPTIONS = ("trainer", "options")
_NAMED = "name a function of yours: `options: {module: my_configs, config: my_model}`"


def registered(options: TorchtitanOptions, plan: JobPlan) -> tuple[str, str]:
    """Return the module and the function of the configuration, of a job without problems."""
    if options.module is not None and options.config is not None:
        return options.module, options.config
    found = REGISTRY[plan.spec["model"]["preset"]]
    return found.module, found.config


def check(options: TorchtitanOptions, plan: JobPlan, cluster: ClusterPlan, known: Known) -> Iterator[Problem]:
    """Check that a function of the registry builds the model, in the format of the job."""
    if (options.module is None) != (options.config is None):
        given, other = ("module", "config") if options.config is None else ("config", "module")
        message = f"`{given}` without `{other}`: torchtitan takes both"
        yield Problem("HW210", JOB, (*_OPTIONS, given), message, f"add `{other}`, or leave both out")
        return
    if options.module is not None:
        return
    model = plan.spec["model"]
    if model is None or model["preset"] is None:
        message = "torchtitan builds its models by functions of a registry, and the job names no preset"
        yield Problem("HW306", JOB, ("model",) if model else ("trainer",), message, f"set `preset` of `model`, or {_NAMED}")
        return
    if model["preset"] not in models():
        # A problem of its own.
        return
    if model["preset"] not in REGISTRY:
        message = f"torchtitan's registry has no function for `{model['preset']}`"
        hint = f"it has {listed(list(REGISTRY))}; or {_NAMED}"
        yield Problem("HW306", JOB, ("model", "preset"), message, hint)
        return
    for name, value in model.items():
        if name != "preset" and value is not None:
            message = f"torchtitan builds `{model['preset']}` as it was published, whatever `{name}` says"
            yield Problem("HW306", JOB, ("model", name), message, f"leave `{name}` out, or {_NAMED}")
    found, compute = REGISTRY[model["preset"]], known["precision.compute"]
    if compute in CONVERTED and compute != found.converts:
        message = f"torchtitan's `{found.config}` has no converter to {compute}"
        yield Problem("HW306", JOB, ("precision", "compute"), message, f"use `bf16`, or {_NAMED} with the converter")
    elif found.converts is not None and compute != found.converts:
        message = f"torchtitan's `{found.config}` computes in {found.converts}"
        path = ("precision", "compute") if compute else ("model", "preset")
        yield Problem("HW306", JOB, path, message, f"set `compute: {found.converts}` in `precision`, or {_NAMED}")
