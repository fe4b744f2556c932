"""Kubernetes as a scheduler: one manifest with a JobSet, whose controller also starts a failed job's next attempt."""

from headway.templates.kind import JobKind
from headway.templates.schedulers.kubernetes.check import check
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.kubernetes.render import render

KUBERNETES = JobKind(KubernetesOptions, check, render)
