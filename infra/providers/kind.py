"""Defines what the folder of a provider exports: its options, and the state of its hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan
from headway.templates.kind import Files

if TYPE_CHECKING:
    from headway.infra.host import HostState
    from headway.infra.reach import Reach


class ProviderKind(Struct, frozen=True):
    """A provider. `hosts` gets options that `options` has validated, the cluster's rendered files, and the folder of
    its document.

    It raises ValueError, which names the missing field, when the plan does not allow reaching a host with files.
    `reach` is for hosts that the plan no longer has: its name and address are empty.
    """

    options: type[BaseModel]
    hosts: "Callable[[Any, ClusterPlan, Files, Path], list[HostState]]"
    reach: "Callable[[Any, Path], Reach]"
