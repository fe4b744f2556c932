"""Merges what a job asks of Slurm into the options of its cluster."""

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.templates.schedulers.requests import request_of
from headway.templates.schedulers.slurm.options import SlurmOptions

_REPLACED = ("partition", "account", "qos", "reservation", "nice", "constraint", "dependency")


def with_request(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> SlurmOptions:
    """Return the cluster's options with the job's in their place, or after them; of two of one name Slurm uses the last. Nodes of other
    groups are excluded, as far as Slurm's names of them are known."""
    asked = request_of(plan)
    found = {name: asked[name] for name in _REPLACED if name in asked}
    others = (options.node_names.get(group.name) for group in cluster.groups if group.name != plan.group)
    found["exclude"] = ",".join(filter(None, (options.exclude, asked.get("exclude"), *others))) or None
    found["directives"] = (*options.directives, *asked.get("sbatch", ()))
    found["srun"] = (*options.srun, *asked.get("srun", ()))
    found["apptainer"] = (*options.apptainer, *asked.get("apptainer", ()))
    return options.model_copy(update=found)
