"""Scheduler `kubernetes`: one manifest with a JobSet, whose controller also starts the next attempt.

In: a `JobPlan` and `KubernetesOptions`. Out: `kubernetes/job.yaml`.
Start reading: `render.py`, `job.yaml.j2`, `pod.sh.j2` (what each pod runs).
"""

from headway.templates.kind import JobKind
from headway.templates.schedulers.kubernetes.check import check, check_cluster, check_options
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.kubernetes.render import mounted, render

KUBERNETES = JobKind(KubernetesOptions, check, render, mounted=mounted, check_options=check_options, check_cluster=check_cluster)
