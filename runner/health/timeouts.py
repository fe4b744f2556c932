"""Computes how long a rank may stay silent in its section: the run's floor, or a multiple of its usual time."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.runner.contract import Timeout
from headway.runner.health.quantiles import Quantiles

SHARE = 0.99

# Section -> its timeout's name. `script` counts as starting before its first step; after that it is computing.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "start": "start",
        "rendezvous": "start",
        "restore": "checkpoint",
        "save": "checkpoint",
        "finish": "checkpoint",
        "data": "data",
        "compute": "compute",
        "script": "compute",
        "compile": "compile",
        "collective": "collective",
        "evaluation": "evaluation",
    }
)


class SectionTimeouts:
    """Timeouts of a run, extended by what is observed."""

    def __init__(self, timeouts: Mapping[str, Timeout]) -> None:
        self._timeouts = timeouts
        self._seen: dict[str, Quantiles] = {}
        self._limits: dict[str, float] = {}

    def saw(self, section: str, bucket: int) -> None:
        """Record that a rank in `section` sent no heartbeat for so long (quantiles.bucket_of), and then did."""
        name = _NAMES[section]
        if (seen := self._seen.get(name)) is None:
            seen = self._seen[name] = Quantiles()
        seen.add(bucket)

    def limit_s(self, section: str, step: int) -> float:
        """Return the seconds without a heartbeat in `section` after which a rank that has done `step` steps counts as hung."""
        return self.of(name_of(section, step))

    def of(self, name: str) -> float:
        """Return the seconds of the timeout of this name."""
        if name not in self._limits:
            timeout, seen = self._timeouts[name], self._seen.get(name)
            self._limits[name] = max(timeout.floor_s, timeout.factor * seen.at(SHARE) if seen else 0.0)
        return self._limits[name]

    def renew(self) -> None:
        """Apply what was observed since the last call."""
        self._limits = {}


def name_of(section: str, step: int) -> str:
    """Return the timeout's name for a rank in `section` that has done `step` steps."""
    return "start" if section == "script" and step == 0 else _NAMES[section]
