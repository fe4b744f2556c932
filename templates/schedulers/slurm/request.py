"""Merges what a job asks of Slurm into the options of its cluster."""

from headway.jobspec.plan import JobPlan
from headway.templates.schedulers.requests import request_of
from headway.templates.schedulers.slurm.options import SlurmOptions

_REPLACED = ("partition", "account", "qos", "reservation", "nice", "constraint", "dependency")


def with_request(options: SlurmOptions, plan: JobPlan) -> SlurmOptions:
    """Return the cluster's options with the job's in their place, or after them; of two of one name Slurm uses the last."""
    asked = request_of(plan)
    found = {name: asked[name] for name in _REPLACED if name in asked}
    if "exclude" in asked:
        found["exclude"] = ",".join(filter(None, (options.exclude, asked["exclude"])))
    found["directives"] = (*options.directives, *asked.get("sbatch", ()))
    found["srun"] = (*options.srun, *asked.get("srun", ()))
    found["apptainer"] = (*options.apptainer, *asked.get("apptainer", ()))
    return options.model_copy(update=found)
