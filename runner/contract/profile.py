"""Defines the request for a profile of a running job, and where its traces go."""

from dataclasses import dataclass
from pathlib import Path

PROFILE_SCHEMA = "headway.profile/1"


@dataclass(frozen=True)
class ProfileRequest:
    """`steps` steps are to be traced on these ranks, into the folder `name` of the run's profiles."""

    name: str
    steps: int
    ranks: tuple[int, ...]
    schema: str = PROFILE_SCHEMA

    def trace(self, profiles: Path, rank: int) -> Path:
        """Return the file of a rank's trace, in the format of Chrome and Perfetto."""
        return profiles / self.name / f"rank-{rank}.json.gz"

    def failure(self, profiles: Path, rank: int) -> Path:
        """Return the file with the reason why a rank has no trace."""
        return profiles / self.name / f"rank-{rank}.failed"
