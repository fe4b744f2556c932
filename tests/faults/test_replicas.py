"""Tests that a lost replica group stops no other: the others keep their processes and the whole batch, and it returns from their memory."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from headway.runner.contract import Execution, RunConfig, from_json
from headway.runner.lines import read_lines
from headway.runner.train.data import open_corpus
from headway.runner.train.model import Transformer, initialize
from headway.runner.train.optimizer import make_optimizer, set_hyperparameters
from headway.runner.train.state import Consumed

from .processes import companions, supervisor, worker
from .runs import JOB, LIMIT_S, Run, going, headway, only_run, wait_until

pytestmark = pytest.mark.slow

# One process adds the same numbers in another order; measured: 3e-7 of a loss.
TOLERANCE = 1e-5
# A third is not a binary fraction: each step rounds, and losses drift apart; measured over 150 steps: 1.1e-5.
TOLERANCE_OF_THREE = 5e-5
SMALL, HYBRID = "dp_replicate: 2", "dp_replicate: 2, dp_shard: 2"
THREE = "dp_replicate: 3"
PROCS = {SMALL: 2, HYBRID: 4, THREE: 3}


def job_of(folder: Path, layout: str, steps: int, tiers: str = "{kind: shared, every: 10 steps}") -> Path:
    """The faults' job without dropout, whose replica groups survive each other."""
    folder.mkdir(parents=True)
    head, _, _ = JOB.read_text().partition("checkpoint:")
    text = head.replace("dropout: 0.1", "dropout: 0.0").replace("steps: 60", f"steps: {steps}")
    text = text.replace("micro: 4", "micro: 2")
    text = text.replace("global: 8", "global: 12") if layout == THREE else text
    resilience = "resilience: {replica_recovery: true, restart: {budget: 20}}"
    (folder / "job.yaml").write_text(f"{text}layout: {{{layout}}}\n{resilience}\ncheckpoint: {{tiers: [{tiers}]}}\n")
    cluster = (JOB.parent / "cluster.yaml").read_text()
    procs = PROCS[layout]
    (folder / "cluster.yaml").write_text(cluster.replace("procs: 2", f"procs: {procs}").replace("cpus: 2", f"cpus: {procs}"))
    return folder / "job.yaml"


@dataclass(frozen=True)
class Going:
    """A run whose groups are lost."""

    runs: Path
    wait: Callable[[], int]

    @property
    def run(self) -> Run:
        return only_run(self.runs)

    def until(self, ready: Callable[[Run], bool], what: str) -> None:
        wait_until(lambda: bool(list(self.runs.glob("*/handle.json"))) and ready(self.run), what)

    def step(self, step: int) -> None:
        self.until(lambda run: max(run.steps(), default=0) >= step, f"step {step}")

    def lose(self, rank: int) -> None:
        """Kill the rank, and wait until the others train without its group, in the same processes."""
        directory, config = self.run.directory, run_config(self.run)
        size = config.mesh.world_size // config.mesh.dp_replicate
        others = {each: self.pid(each) for each in range(config.mesh.world_size) if each // size != rank // size}
        before, regrouped = len(self.run.journal("replica lost")), len(self.run.journal("regrouped"))
        worker(directory, rank).kill()
        self.until(lambda run: len(run.journal("replica lost")) > before, f"the loss of rank {rank}'s group")
        self.until(lambda run: len(run.journal("regrouped")) > regrouped, "the others")
        # They cannot end before the group has returned.
        assert {each: self.pid(each) for each in others} == others

    def returns(self, replica: int) -> None:
        """Wait until the most recently lost group has returned."""
        losses = len(self.run.journal("replica lost"))
        self.until(lambda run: len(returned(run)) == losses, f"the return of replica group {replica}")
        assert returned(self.run)[-1] == [replica]

    def pid(self, rank: int) -> int:
        return worker(self.run.directory, rank).pid


@contextmanager
def training(job: Path) -> Iterator[Going]:
    runs = job.parent / "runs"
    with going("run", job, runs=runs) as launcher:
        yield Going(runs, lambda: launcher.wait(LIMIT_S))


def returned(run: Run) -> list[list[int]]:
    return [line["returned"] for line in run.journal("regrouped") if line.get("returned")]


def check_whole(run: Run, layout: str, losses: int) -> None:
    """Assert that no generation ended before the last step, and that all groups ended with the same bits."""
    assert (len(run.journal("start")), run.journal("failure"), run.verdict()["exit_code"]) == (1, [], 0)
    assert len(run.journal("replica lost")) == losses
    states = {
        rank: next(run.directory.glob(f"attempts/0/logs/*/{rank}.log")).read_text().rpartition(": state ")[2].split()[0]
        for rank in range(PROCS[layout])
    }
    size = PROCS[layout] // run_config(run).mesh.dp_replicate
    assert all(state == states[rank % size] for rank, state in states.items())
    assert len(run.checkpoints()) > 0


def check_curve(run: Run) -> None:
    """Assert that the losses are those of one process."""
    expected, _ = alone(run_config(run))
    tolerance = TOLERANCE_OF_THREE if run_config(run).mesh.dp_replicate > 2 else TOLERANCE
    assert max(abs(a - b) / b for a, b in zip(losses_of(run), expected, strict=True)) <= tolerance


def run_config(run: Run) -> RunConfig:
    return from_json(RunConfig, next(run.directory.glob("attempts/0/run.json")).read_text())


def losses_of(run: Run) -> list[float]:
    found = {line["step"]: line["loss"] for line, _ in read_lines(run.directory / "metrics.jsonl")}
    return [found[step] for step in sorted(found)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow if other processes need the CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def alone(config: RunConfig) -> tuple[list[float], Consumed]:
    """The losses and the samples of the same training in one process, without any of the trainer's parallel code."""
    assert config.model is not None and config.optimizer is not None and config.batch is not None  # noqa: PT018
    assert config.data is not None and config.steps is not None  # noqa: PT018
    corpus, batch, consumed, losses = open_corpus(config.data), config.batch, Consumed(), []
    model = Transformer(config.model, Execution())
    initialize(model, config.model, config.seed)
    optimizer = make_optimizer(model, config.optimizer)
    for step in range(config.steps):
        places = range(step * batch.global_sequences, (step + 1) * batch.global_sequences)
        windows = [corpus.at(place, batch.sequence_length, config.seed) for place in places]
        for place, window in zip(places, windows, strict=True):
            consumed.take(place, window.tokens)
        tokens = torch.stack([window.tokens for window in windows])
        loss = model(tokens[:, :-1], tokens[:, 1:])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        set_hyperparameters(optimizer, config.optimizer, step, config.steps)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, consumed


def test_a_lost_replica_group_stops_no_other_group(tmp_path: Path) -> None:
    steps = 30
    with training(job_of(tmp_path / "job", SMALL, steps)) as train:
        train.step(4)
        train.lose(1)
        train.returns(1)
        assert train.wait() == 0
    run = train.run
    check_whole(run, SMALL, losses=1)
    expected, consumed = alone(run_config(run))
    found = losses_of(run)
    assert len(found) == steps
    assert max(abs(a - b) / b for a, b in zip(found, expected, strict=True)) <= TOLERANCE
    # The whole batch in each step, each sample once.
    assert sum(line["tokens"] for line, _ in read_lines(run.directory / "metrics.jsonl")) == steps * 8 * 32
    assert run.hashes()["samples"] == samples_hash(consumed, steps * 8)
    first, second = run.journal("regrouped")
    assert (first["replicas"], second["replicas"], second["returned"]) == ([0], [0, 1], [1])


def samples_hash(consumed: Consumed, position: int) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(f"{position}/{consumed.digest}".encode())


# --- make soak ----------------------------------------------------------------------------------------------------------


@pytest.mark.variant
@pytest.mark.parametrize("layout", [SMALL, HYBRID])
def test_groups_lost_in_turn_change_no_bit(layout: str, tmp_path: Path) -> None:
    steps = 200
    straight = headway("run", job_of(tmp_path / "straight", layout, steps), runs=tmp_path / "straight/runs")
    assert straight.returncode == 0, straight.stdout + straight.stderr
    last = PROCS[layout] - 1
    with training(job_of(tmp_path / "lost", layout, steps)) as train:
        train.step(10)
        train.lose(last)
        train.returns(1)
        train.lose(0)
        train.returns(0)
        # A rank that is not the first of its group.
        train.lose(PROCS[layout] // 2 - 1)
        train.returns(0)
        assert train.wait() == 0
    check_whole(train.run, layout, losses=3)
    assert train.run.hashes() == only_run(tmp_path / "straight/runs").hashes()
    assert losses_of(train.run) == losses_of(only_run(tmp_path / "straight/runs"))


@pytest.mark.variant
def test_a_group_lost_during_a_save_costs_only_that_save(tmp_path: Path) -> None:
    with training(
        job_of(tmp_path / "job", SMALL, 240, "{kind: memory, every: 1 steps}, {kind: shared, every: 1 steps}")
    ) as train:
        train.step(8)
        for rank in (1, 0, 1):
            train.lose(rank)
            train.returns(rank)
        assert train.wait() == 0
    check_whole(train.run, SMALL, losses=3)
    check_curve(train.run)


@pytest.mark.variant
def test_a_group_that_dies_while_returning_restarts(tmp_path: Path) -> None:
    with training(job_of(tmp_path / "job", HYBRID, 150)) as train:
        train.step(6)
        train.lose(3)
        # As soon as its new processes are members, which then receive the state.
        train.until(lambda run: len(run.journal("members")) > 1, "members again")
        worker(train.run.directory, 2).kill()
        train.until(lambda run: returned(run) != [] and [1] in returned(run), "the return")
        assert train.wait() == 0
    assert len(train.run.journal("start")) == 1
    check_whole(train.run, HYBRID, losses=len(train.run.journal("replica lost")))


@pytest.mark.variant
def test_two_of_three_groups_are_lost_together(tmp_path: Path) -> None:
    with training(job_of(tmp_path / "job", THREE, 120)) as train:
        train.step(6)
        processes = [worker(train.run.directory, rank) for rank in (0, 2)]
        for process in processes:
            process.kill()
        train.until(lambda run: {replica for each in returned(run) for replica in each} == {0, 2}, "the return of both")
        assert train.wait() == 0
    check_whole(train.run, THREE, losses=2)
    check_curve(train.run)


@pytest.mark.variant
def test_another_group_is_lost_while_one_returns(tmp_path: Path) -> None:
    with training(job_of(tmp_path / "job", THREE, 120)) as train:
        train.step(6)
        worker(train.run.directory, 2).kill()
        # As soon as its new process is a member, which then receives the state.
        train.until(lambda run: len(run.journal("members")) > 1, "members again")
        worker(train.run.directory, 0).kill()
        train.until(lambda run: {replica for each in returned(run) for replica in each} >= {0, 2}, "the return of both")
        assert train.wait() == 0
    check_whole(train.run, THREE, losses=2)
    check_curve(train.run)


@pytest.mark.variant
@pytest.mark.parametrize("spares", [1, 0])
def test_a_lost_node_stops_no_other_group(spares: int, tmp_path: Path) -> None:
    """Its group returns on a spare, or on the node once that is back."""
    job = job_of(tmp_path / "job", SMALL, 120)
    job.write_text(
        job.read_text().replace("nodes: 1\n", "nodes: 2\n").replace("resilience: {", f"resilience: {{spares: {spares}, ")
    )
    cluster = job.parent / "cluster.yaml"
    text = cluster.read_text().replace("procs: 2", "procs: 1").replace("cpus: 2", "cpus: 1")
    cluster.write_text(text.replace("count: 1", f"count: {2 + spares}"))
    with training(job) as train, ExitStack() as back:
        train.step(6)
        survivor, lost = train.pid(0), supervisor(train.run.directory, 1)
        lost.kill()
        train.until(lambda run: len(run.journal("regrouped")) == 1, "the other group")
        if not spares:
            started = subprocess.Popen(lost.command, env={**os.environ, **lost.environment})
            back.callback(started.wait)
            back.callback(started.kill)
        train.until(lambda run: returned(run) == [[1]], "the return")
        assert train.pid(0) == survivor
        train.until(lambda run: run.journal("end") != [], "the end")
        assert train.wait() == 0
    check_whole(train.run, SMALL, losses=1)
    check_curve(train.run)
    moves = [(line["slot"], line["from"], line["to"]) for line in train.run.journal("rebound")]
    assert moves == [(1, 1, 2)] * spares


@pytest.mark.variant
def test_all_ranks_restart_if_the_coordinator_is_lost_too(tmp_path: Path) -> None:
    with training(job_of(tmp_path / "job", SMALL, 120)) as train:
        train.step(24)
        (coordinator,) = companions(train.run.directory, "headway.runner.coordinator.main")
        train.lose(1)
        coordinator.kill()
        assert train.wait() == 0
    assert len(train.run.journal("start")) == 2
    assert losses_of(train.run)[-1] == pytest.approx(alone(run_config(train.run))[0][-1], rel=TOLERANCE)


@pytest.mark.variant
def test_all_ranks_restart_if_no_group_is_left(tmp_path: Path) -> None:
    with training(job_of(tmp_path / "job", SMALL, 120)) as train:
        train.step(24)
        for process in [worker(train.run.directory, rank) for rank in (0, 1)]:
            process.kill()
        assert train.wait() == 0
    assert len(train.run.journal("start")) == 2
    assert [claim["base"]["step"] >= 10 for claim in train.run.journal("claim")[1:]] == [True]
