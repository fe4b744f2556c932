"""Table of the providers of machines that a cluster document may name.

In: the `provider` of a cluster document. Out: a `ProviderKind` (`kind.py`).
To add a provider, add a folder next to `onprem/` and a row below.
"""

import types
from collections.abc import Mapping

from headway.infra.providers.kind import ProviderKind
from headway.infra.providers.onprem import ONPREM

PROVIDERS: Mapping[str, ProviderKind] = types.MappingProxyType({"onprem": ONPREM})
