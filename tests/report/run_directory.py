"""Writes run directories like the runner: every time, step, commit and ledger line follows from one clock."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUBMITTED_AT = 1_763_710_000.0
STEP_S = 0.5
SAVE_S = 0.25
TOKENS = 4_096
HASHES = {
    name: f"{index:032x}" for index, name in enumerate(("parameters", "optimizer", "rng", "samples", "state"), start=0xA11CE)
}


class RunDirectory:
    """A run under construction. Each method advances the clock by the seconds that it adds to the ledger."""

    def __init__(
        self, path: Path, job: str = "quickstart", planned: int | None = 40, trainer: str = "builtin", world_size: int = 2
    ) -> None:
        self.path = path
        self.name = path.name
        self.clock = SUBMITTED_AT
        self.generation = 0
        self.attempt = 0
        self.step = 0
        self.world_size = world_size
        self._nodes = {"slots": 1, "spares": 0}
        self._opened_at = self.clock
        self._buckets: dict[str, float] = {}
        self._noise = random.Random(7)
        (path / "shared" / "journal").mkdir(parents=True)
        self.write(
            "handle.json",
            {"schema": "headway.handle/1", "run": self.name, "job": job, "spec_hash": "1a2b3c4d5e6f7081"}
            | self._shape(planned, trainer),
        )

    def _shape(self, planned: int | None, trainer: str) -> dict[str, Any]:
        gang = {"slots": 1, "procs_per_slot": self.world_size, "world_size": self.world_size}
        return gang | {"steps": planned, "trainer": trainer, "submitted_at": SUBMITTED_AT}

    def begin(
        self, base: tuple[int, int] | None = None, load: bool = True, hosts: Sequence[str] = ("localhost",), **spent_s: float
    ) -> None:
        """Claim the next generation from `base` (step, generation); `spent_s` is added to the ledger before its first step."""
        self.generation += 1
        (self.path / "attempts" / str(self.attempt)).mkdir(parents=True, exist_ok=True)
        claimed = None if base is None else {"step": base[0], "generation": base[1]}
        self.journal("claim", base=claimed)
        for name, seconds in (spent_s or {"rendezvous": 1.5}).items():
            self.spend(name, seconds)
        nodes = [{"node": slot, "host": host, "slot": slot} for slot, host in enumerate(hosts)]
        self.journal("start", nodes=nodes, world_size=self.world_size)
        self.step = base[0] if base else 0
        if load:
            self.journal("loaded", step=self.step)

    def train(self, to_step: int, every: int = 10, n_bytes: int = 3_400_000, again_to: int = 0) -> None:
        """Step to `to_step` and commit a checkpoint after every `every` steps; those up to `again_to` are repeated."""
        lines = []
        while self.step < to_step:
            self.spend("lost_recompute" if self.step < again_to else "productive", STEP_S)
            self.step += 1
            lines.append(self.metrics_line(loss_at(self.step) + self._noise.gauss(0, 0.03)))
            if self.step % every == 0:
                self.spend("save_block", SAVE_S)
                self.journal("committed", step=self.step, save_s=SAVE_S, bytes=n_bytes)
        self.append("metrics.jsonl", lines)

    def metrics_line(self, loss: float) -> dict[str, Any]:
        place = {"wall": self.clock, "mono_s": self.clock - SUBMITTED_AT, "attempt": self.attempt, "generation": self.generation}
        return place | {
            "step": self.step,
            "loss": loss,
            "grad_norm": 1.0,
            "tokens": TOKENS,
            "step_s": STEP_S,
            "memory_bytes": 2**28,
        }

    def fail(
        self,
        cause: str = "killed by SIGKILL",
        rank: int | None = 1,
        host: str | None = "localhost",
        back_to: int = 0,
        kind: str | None = None,
    ) -> None:
        """Record a failure noticed after 0.5 s; the steps after `back_to` become lost."""
        self.spend("detect", 0.5)
        self.journal("failure", cause=cause, cause_kind=kind, rank=rank, node=0, host=host, step=self.step)
        lost_s = STEP_S * (self.step - back_to)
        self._buckets["productive"] = self._buckets.get("productive", 0.0) - lost_s
        self._buckets["lost_recompute"] = self._buckets.get("lost_recompute", 0.0) + lost_s
        self.close()

    def refuse(self, step: int, generation: int, reason: str = "chunk 3 of `layers.0.attention.wq`: xxh3_128 differs") -> None:
        self.journal("refused", step=step, generation=generation, name="data-0-0.bin", reason=reason)

    def finish(self, hashes: Mapping[str, str] = HASHES) -> None:
        self.journal("finished", step=self.step, hashes=hashes)
        self.close()
        self.end("completed", 0, "all ranks finished")

    def end(self, verdict: str, exit_code: int, cause: str) -> None:
        """Write the attempt's end, in the journal and as verdict.json."""
        self.journal("end", verdict=verdict, exit_code=exit_code, cause=cause)
        outcome = {"verdict": verdict, "exit_code": exit_code, "cause": cause, "step": self.step}
        identity = {"schema": "headway.verdict/1", "run": self.name, "attempt": self.attempt, "generation": self.generation}
        self.write(f"attempts/{self.attempt}/verdict.json", identity | outcome)

    def close(self) -> None:
        """Write the generation's ledger line."""
        identity = {"schema": "headway.ledger/1", "attempt": self.attempt, "generation": self.generation}
        nodes = {} if self._nodes == {"slots": 1, "spares": 0} else self._nodes
        self.append("ledger.jsonl", [identity | {"start": self._opened_at, "end": self.clock, "buckets": self._buckets} | nodes])
        self._opened_at, self._buckets = self.clock, {}

    def gang(self, slots: int, spares: int) -> None:
        """Set the number of nodes that compute and of spares from now on."""
        self._nodes = {"slots": slots, "spares": spares}

    def spend(self, bucket: str, seconds: float) -> None:
        self.clock += seconds
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + seconds

    def wait(self, seconds: float) -> None:
        """Start the next attempt after this time in the queue."""
        self.attempt += 1
        self.spend("queue", seconds)
        identity = {"schema": "headway.ledger/1", "attempt": self.attempt, "generation": 0}
        self.append("ledger.jsonl", [identity | {"start": self._opened_at, "end": self.clock, "buckets": self._buckets}])
        self._opened_at, self._buckets = self.clock, {}

    def skip(self, seconds: float) -> None:
        """Advance the clock by time that no ledger line covers."""
        self.clock += seconds
        self._opened_at = self.clock

    def journal(self, kind: str, **body: Any) -> None:
        line = {"wall": self.clock, "kind": kind, "generation": self.generation, "attempt": self.attempt}
        self.append(f"shared/journal/{self.generation:06}.jsonl", [line | body])

    def append(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        (self.path / name).write_text(json.dumps(record), encoding="utf-8")


def loss_at(step: int) -> float:
    return 1.6 + 4.0 * math.exp(-step / 12) + 0.5 * math.exp(-step / 200)


def clean_run(path: Path, steps: int = 40, every: int = 10, job: str = "quickstart") -> RunDirectory:
    run = RunDirectory(path, job=job, planned=steps)
    run.begin()
    run.train(steps, every)
    run.finish()
    return run


def one_failure(path: Path) -> RunDirectory:
    """Rank 1 dies after step 27; all ranks resume from step 20 and train to 40."""
    run = RunDirectory(path)
    run.begin()
    run.train(27)
    run.fail(back_to=20)
    run.begin(base=(20, 1), restart=1.25, rendezvous=0.75, restore=0.5)
    run.train(40)
    run.finish()
    return run


def two_failures_and_a_refusal(path: Path) -> RunDirectory:
    """Fails after step 27 and resumes at 20; fails after 35 on n2, rejects the checkpoint of step 30 and resumes at 20 again."""
    run = RunDirectory(path, world_size=4)
    run.begin(hosts=("n1", "n2"))
    run.train(27)
    run.fail(back_to=20, host="n2", rank=2)
    run.begin(base=(20, 1), hosts=("n1", "n2"), restart=1.0, rendezvous=1.0, restore=0.5)
    run.train(35)
    run.fail("no heartbeat for 30 s", rank=None, host="n2", back_to=20)
    run.begin(base=(30, 2), load=False, hosts=("n1", "n3"), restart=1.0, rendezvous=1.0)
    run.refuse(30, 2)
    run.close()
    run.begin(base=(20, 1), hosts=("n1", "n3"), restart=0.25, restore=0.5)
    run.train(40)
    run.finish()
    return run


def hang_and_lost_node(path: Path) -> RunDirectory:
    """Two nodes and a spare: rank 1 hangs after step 12, back to 10; after step 14 node n2 is lost, and the spare n3 replaces it."""
    run = RunDirectory(path, planned=20, world_size=4)
    run.spend("queue", 3.0)
    run.gang(slots=2, spares=1)
    run.begin(hosts=("n1", "n2"))
    run.train(12)
    run.spend("hang", 3.0)
    why = "its process is stopped (state T)"
    run.journal("hang", ranks=[1], section="compute", silent_s=3.0, why=why, evidence=["attempts/0/evidence/stacks-1.txt"])
    run.fail("no heartbeat for 3.0 s in compute", back_to=12, kind="hang")
    run.begin(base=(10, 1), hosts=("n1", "n2"), restart=0.5)
    run.journal("straggler", rank=3, ratio=1.5, own_step_s=0.75, node=1, host="n2")
    run.train(14, again_to=12)
    run.journal("lost", node=1, host="n2", why="its connection ended")
    run.fail("node lost: its connection ended", rank=2, host="n2", back_to=14, kind="node lost")
    run.gang(slots=2, spares=0)
    run.journal("rebound", **{"slot": 1, "from": 1, "to": 2, "outside": False, "host": "n3"})
    run.begin(base=(10, 1), hosts=("n1", "n3"), restart=1.0, rendezvous=0.7)
    run.train(20, again_to=14)
    run.journal("unseen", calls=["no torch optimizer has stepped"])
    run.finish()
    return run


def wrong_numbers(path: Path) -> RunDirectory:
    """A transient fault and a spike, then node n2 is found to compute wrongly at step 15, and the run resumes from 10."""
    run = RunDirectory(path)
    run.begin(hosts=("n1", "n2"))
    found = "rank 1 computed what no other rank did"
    run.journal("transient", rank=0, node=0, ranks=[1], hosts=["n2"], step=5, sample=40, found=found)
    run.journal("spike", rank=0, node=0, step=8, sample=64, found="gradient norm 90, 12.0 times the usual 7.5")
    run.train(14)
    found = "rank 1 computes what no other rank does, again and again"
    run.journal("corruption", ranks=[1], nodes=[1], hosts=["n2"], sound_step=10, found=found)
    run.fail(found, rank=1, host="n2", back_to=14, kind="corruption")
    run.begin(base=(10, 1), hosts=("n1", "n3"), restart=1.0)
    run.train(20, again_to=14)
    run.finish()
    return run


def still_running(path: Path) -> RunDirectory:
    """One failure, 13 steps in the second generation, no verdict."""
    run = RunDirectory(path)
    run.begin()
    run.train(15)
    run.fail(back_to=10)
    run.begin(base=(10, 1), restart=1.0, restore=0.5)
    run.train(23)
    return run


def never_trained(path: Path) -> RunDirectory:
    """Under `headway torchrun`: no metrics, the script fails three times and the run stops."""
    run = RunDirectory(path, job="train.py", planned=None, trainer="script")
    for _ in range(3):
        run.begin(load=False)
        run.fail("exited with code 1", rank=0, back_to=0)
    run.end("stop", 83, "exited with code 1 three times at the same place")
    return run
