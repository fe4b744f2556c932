"""Merges what a job asks of Kubernetes into the options of its cluster."""

from collections.abc import Mapping
from typing import Any

from headway.jobspec.plan import JobPlan
from headway.jobspec.spec.scheduling import Toleration
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.requests import request_of

_REPLACED = ("local_queue", "priority_class", "runtime_class")
_ADDED = ("labels", "annotations", "node_selector", "pod", "container")


def with_request(options: KubernetesOptions, plan: JobPlan) -> KubernetesOptions:
    """Return the cluster's options with the job's: its values in their place, its lists and mappings added to theirs."""
    asked = request_of(plan)
    found = {name: asked[name] for name in _REPLACED if name in asked}
    found |= {name: merged(getattr(options, name), asked[name]) for name in _ADDED if name in asked}
    secrets = (*options.image_pull_secrets, *asked.get("image_pull_secrets", ()))
    found["image_pull_secrets"] = tuple(dict.fromkeys(secrets))
    found["tolerations"] = (*options.tolerations, *(Toleration(**each) for each in asked.get("tolerations", ())))
    return options.model_copy(update=found)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings as one: mappings in them are merged, lists follow each other, and else the second's value counts."""
    found = dict(first)
    for key, value in second.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            found[key] = merged(before, value)
        elif isinstance(before, list | tuple) and isinstance(value, list | tuple):
            found[key] = [*before, *value]
        else:
            found[key] = value
    return found
