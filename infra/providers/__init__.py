"""The providers of machines that a cluster may have."""

import types
from collections.abc import Mapping

from headway.infra.providers.kind import ProviderKind
from headway.infra.providers.onprem import ONPREM

PROVIDERS: Mapping[str, ProviderKind] = types.MappingProxyType({"onprem": ONPREM})
