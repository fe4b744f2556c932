"""Reports a run whose peer gave up: each claim without the peer's figures and without a ratio."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from benchmarks.claim import Claim, Spread, report


@dataclass(frozen=True)
class GaveUp:
    """The peer, and why there is nothing of it."""

    peer_name: str
    why: str

    def line(self) -> str:
        return f"the peer gave up: {self.peer_name}: {self.why}"

    def json(self) -> str:
        return json.dumps({"peer_name": self.peer_name, "gave_up": self.why})


@dataclass(frozen=True)
class Alone:
    """A claim as `like` would have it, for headway alone; `holds` is None if the goal is a ratio, which cannot be computed."""

    like: type[Claim]
    claim: str
    ours: Spread
    peer_name: str
    goal: float
    holds: bool | None
    conditions: str

    def line(self) -> str:
        verdict = {True: "holds", False: "DOES NOT HOLD", None: "not judged"}[self.holds]
        ours = f"{self.ours.median:.3f} {self.like.unit} ({self.ours.low:.3f} to {self.ours.high:.3f})"
        goal = f"goal at most {self.goal:g} {self.like.goal_unit}"
        return f"{verdict}: {self.claim}: {ours}, {goal}; {self.peer_name}: gave up ({self.conditions})"

    def json(self) -> str:
        """With the keys of a claim's object."""
        told = {"claim": self.claim, "ours": asdict(self.ours), "peer": None, "peer_name": self.peer_name, "ratio": None}
        return json.dumps({**told, "goal": self.goal, "holds": self.holds, "conditions": self.conditions})


def report_all(told: Iterable[Claim | Alone | GaveUp], *, as_json: bool) -> int:
    """Report like `report`; a claim that cannot be judged without the peer neither holds nor fails."""
    failed = False

    def paired() -> Iterable[Claim]:
        nonlocal failed
        for each in told:
            if isinstance(each, Claim):
                yield each
                continue
            print(each.json() if as_json else each.line(), flush=True)
            failed = failed or (isinstance(each, Alone) and each.holds is False)

    return report(paired(), ["--json"] if as_json else []) or int(failed)
