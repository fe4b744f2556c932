"""Runs the builtin trainer, one process per rank: restores the claim's base, trains to the last step, saves as the spec sets."""

import contextlib
import dataclasses
import json
import os
import resource
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from headway.runner.boot.heartbeat import HeartbeatReporter, in_section, report_heartbeats, write_modules
from headway.runner.boot.hooks import prepare_signs
from headway.runner.boot.limitations import suppress_errors
from headway.runner.checkpoint.authority import place_of, say_outcome, say_refused, say_retired
from headway.runner.checkpoint.chain import Chain, SupersededError
from headway.runner.checkpoint.format import RefusedError, UnfitError
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.restore import open_base
from headway.runner.checkpoint.rng import seed_all
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.schedule import TierSchedule
from headway.runner.checkpoint.setup import connector, saver_of
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import STORED_TIERS, Exit, MetricsLine, RunConfig, RunDirectory, from_json
from headway.runner.history import position
from headway.runner.lines import append_line, cut_torn_line
from headway.runner.train.corpora import ShardReader, open_corpora
from headway.runner.train.corruption_state import CorruptionState
from headway.runner.train.data import DataError, SampleSource, open_corpus
from headway.runner.train.gradients import Gradients, StepConsensus
from headway.runner.train.job import Job
from headway.runner.train.optimizer import make_optimizer, set_hyperparameters
from headway.runner.train.parallel import RankMesh, build, make_mesh
from headway.runner.train.profile import StepProfiler
from headway.runner.train.state import Consumed, TrainState
from headway.runner.worker import Worker

if TYPE_CHECKING:
    from headway.runner.train.pipeline import Pipeline


class Trainer:
    """One rank's training loop."""

    def __init__(self, worker: Worker, job: Job, signs: HeartbeatReporter) -> None:
        self.worker, self.job, self.signs = worker, job, signs
        self.directory = RunDirectory.of(Path(worker.run_json), worker.attempt)
        self.device = _device(job.config.backend, worker.local_rank)
        self.ranks = self._ranks()
        assert job.config.data is not None and job.config.run is not None  # noqa: PT018, S101
        self.corpus = self._open_data()
        checkpoint = job.config.checkpoint
        self.place = place_of(worker, job.config, self.directory, checkpoint)
        self.chain = Chain(open_store(str(self.directory.chain)), self.place.run)
        self.connect = connector(lambda: self.place, checkpoint, Ranks(worker.rank, worker.world_size))
        self._open_saver()
        self.schedule = TierSchedule(checkpoint.tiers, time.monotonic())
        # By saves since the last step.
        self._blocked_s = 0.0
        self._stepped = False
        self._began = time.monotonic()
        # Of the last step.
        self.line: MetricsLine | None = None
        self.profiler = StepProfiler(self.directory, worker.rank)
        self._is_profiled = False
        self._waited_ns = worker.not_own_ns
        self.state = self._build()
        self.gradients = self._gradients_of_rank()
        if worker.rank == 0:
            cut_torn_line(self.directory.metrics)

    # What differs where replica groups survive each other: see `replica_trainer.py`.

    def _ranks(self) -> Ranks:
        """Return all ranks of the job."""
        return Ranks(self.worker.rank, self.worker.world_size)

    def _open_saver(self) -> None:
        """Begin to save; collective."""
        self.saver = saver_of(self.place, self.chain, self.ranks, self.job.config.checkpoint, self.connect, self._sound_step)

    @property
    def _is_superseded(self) -> bool:
        """Whether a save of this rank has seen a newer claim."""
        return self.saver.superseded

    def _mesh(self) -> RankMesh:
        """Return this rank's place among those that it computes with; collective."""
        return make_mesh(self.device.type, self.job.config.mesh, self.job.execution, self.worker.rank)

    def _gradients_of_rank(self) -> Gradients:
        return Gradients(self.worker, self.state, self.corpus, self.ranks, self.mesh, self._pipeline())

    @property
    def _is_first(self) -> bool:
        """Whether this rank writes and decides for all."""
        return self.worker.rank == 0

    def _open_data(self) -> SampleSource:
        """Return the job's samples; collective. Raises DataError before anything is trained on them."""
        config, worker = self.job.config, self.worker
        assert config.data is not None  # noqa: S101
        if config.data.kind != "tokens":
            return open_corpus(config.data)
        with in_section("data"):
            return open_corpora(
                config, ShardReader(self.ranks, worker.local_rank, config.procs_per_slot, self.directory.verified)
            )

    def _build(self) -> TrainState:
        """Return the sharded model with its optimizer, as it is before step 0."""
        job, seed = self.job, self.job.config.seed
        sequence = job.batch.sequence_length
        self.mesh = self._mesh()
        self.parts = build(job.model, job.execution, self.mesh, self.device, sequence, seed)
        seed_all(seed, self.worker.rank)
        optimizer = make_optimizer(self.parts, job.optimizer)
        soundness = CorruptionState() if job.config.corruption else None
        return TrainState(self.parts, optimizer, Consumed(), self.device, seed, self.corpus.fingerprint, soundness=soundness)

    def _pipeline(self) -> "Pipeline | None":
        if self.mesh.degrees.pp == 1:
            return None
        # It imports half a second of torch, which only a pipeline needs.
        from headway.runner.train.pipeline import Pipeline  # noqa: PLC0415

        job = self.job
        return Pipeline(self.parts, self.mesh, job.execution, job.model, job.batch, self.device)

    # --- start and end ------------------------------------------------------------------------------------------------

    def run(self) -> Exit:
        """Train to the last step, or until asked to save and stop. Collective throughout."""
        self._restore()
        self.saver.prepare(self._to_save())
        self._clock = time.monotonic()
        while self.state.step < self._last_step():
            stop = self._step()
            last = stop or self.state.step == self._last_step()
            due = self._stored_tiers() if last else self._due
            if due:
                self._save(due)
            self._report()
            self.profiler.follow(wanted=self._is_profiled and not last)
            if stop:
                self._wait()
                return Exit.PREEMPTED
        self._wait()
        self._finish()
        return Exit.COMPLETED

    def _finish(self) -> None:
        """Report the hashes of the last state."""
        self.signs.base("finish")
        hashes = self.state.hashes(self.ranks)
        if self.worker.rank == 0:
            self.worker.say("finished", step=self.state.step, hashes=hashes)
            print(
                json.dumps({"finished": self.state.step, "seconds": round(time.monotonic() - self._began, 3), "hashes": hashes})
            )

    def _sound_step(self) -> int | None:
        return None if self.state.soundness is None else self.state.soundness.step

    def _last_step(self) -> int:
        return self.job.config.last_step or self.job.steps

    def _restore(self) -> None:
        """Load and verify the claim's base; no rank continues before all have."""
        self._section("restore")
        base = self.worker.base
        if base is not None:
            try:
                with in_section("restore"):
                    self.state.restore(open_base(self.place, base, self.ranks, self.connect), self.ranks)
            except RefusedError as error:
                say_refused(self.worker, base, error)
                raise
        self.worker.completed(self.state.step)
        self.worker.say("loaded", step=self.state.step)
        self._section("compute")

    # --- one step -----------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Take one optimizer step over `batch.global_sequences` samples. Returns True when all ranks are to save and stop."""
        job, state = self.job.at(self.state.step), self.state
        state.consumed.position = self.worker.sample = position(self.job.config, state.step)
        agreed, stop = self._gradients(job)
        self._apply(job, agreed)
        return stop

    def _apply(self, job: Job, agreed: StepConsensus) -> None:
        """Step the optimizer."""
        state = self.state
        set_hyperparameters(state.optimizer, job.optimizer, state.step, job.steps)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.consumed.position += job.batch.global_sequences
        state.step += 1
        self.worker.completed(state.step)
        if not self._stepped:
            self._stepped = True
            suppress_errors(write_modules, self.worker)
        self._write_metrics(job, agreed)

    def _gradients(self, job: Job) -> tuple[StepConsensus, bool]:
        """Compute the gradients of the step, and return whether all ranks are to save and stop after it.

        The first rank's clock decides which tiers are due. Raises SupersededError on all ranks when one has seen a
        newer claim.
        """
        late = [first and self._is_first for first in self.schedule.late(time.monotonic())]
        profiled = self._is_first and self.profiler.is_wanted()
        agreed = self.gradients.of(job, [self.worker.save_requested(), self._is_superseded, profiled, *late])
        return agreed, self._follow(agreed)

    def _follow(self, agreed: StepConsensus) -> bool:
        """Take over what the ranks have agreed on. Returns whether all ranks are to save and stop after the step."""
        stop, superseded, self._is_profiled, *late = agreed.flags
        if superseded:
            raise SupersededError("a newer generation has claimed the run")
        self._due = self.schedule.due(self.state.step + 1, late, time.monotonic())
        return stop

    # --- saves and metrics --------------------------------------------------------------------------------------------

    def _stored_tiers(self) -> set[str]:
        """Return the tiers of a run's last state: all that outlive the allocation."""
        return {tier.kind for tier in self.job.config.checkpoint.tiers if tier.kind in STORED_TIERS}

    def _to_save(self) -> RankState:
        return self.state.to_save(self.ranks)

    def _save(self, tiers: set[str]) -> None:
        """Copy the state; saving continues in parallel with the next steps."""
        began = time.monotonic()
        with in_section("save"):
            self.saver.save(self.state.step, self._to_save(), tiers)
        self._clock = time.monotonic()
        self._blocked_s += self._clock - began

    def _report(self) -> None:
        """Report the results of saves. Ranks agree on a newer generation's claim after the next step."""
        with contextlib.suppress(SupersededError):
            self._report_all()

    def _wait(self) -> None:
        """Wait until every save has ended. Raises SupersededError on all ranks."""
        began = time.monotonic()
        with in_section("save"):
            self.saver.wait_quietly()
            self.ranks.together(self._report_all)
        if self.worker.rank == 0:
            self.worker.say("waited", seconds=time.monotonic() - began)

    def _report_all(self) -> None:
        for outcome in self.saver.outcomes():
            self._report_save(outcome)
        say_retired(self.worker, self.saver.retired())

    def _report_save(self, outcome: SaveOutcome) -> None:
        say_outcome(self.worker, outcome)

    def _write_metrics(self, job: Job, agreed: StepConsensus) -> None:
        now, tokens = time.monotonic(), job.batch.global_sequences * job.batch.sequence_length
        step_s, self._clock = now - self._clock, now
        save_s, self._blocked_s = self._blocked_s, 0.0
        waited_ns, self._waited_ns = self.worker.not_own_ns - self._waited_ns, self.worker.not_own_ns
        who = {"attempt": self.worker.attempt, "generation": self.worker.generation, "step": self.state.step}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.line = MetricsLine(
            time.time(),
            now,
            **who,
            loss=agreed.loss,
            grad_norm=agreed.norm,
            tokens=tokens,
            step_s=step_s,
            memory_bytes=memory,
            save_s=save_s,
            device_bytes=self._device_peak(),
            communication_s=None if self.device.type == "cuda" else waited_ns / 1e9,
        )
        if self._is_first:
            self._append(self.line)

    def _append(self, line: MetricsLine) -> None:
        try:
            append_line(self.directory.metrics, dataclasses.asdict(line))
        except OSError as error:
            # A full disk costs a line of the curve, not the run.
            print(f"step {line.step} is missing in metrics.jsonl: {error}", file=sys.stderr)

    def _device_peak(self) -> int | None:
        """Return the most bytes of tensors on the GPU since the last step."""
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def _section(self, name: str) -> None:
        self.signs.base(name)
        if self.worker.rank == 0:
            self.worker.say("section", name=name)


def _device(backend: str, local_rank: int) -> torch.device:
    if backend == "nccl":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    if not hasattr(torch.cpu.Stream, "record_event"):
        raise UnfitError(f"FSDP of torch {torch.__version__} works on GPUs only; the builtin trainer needs a newer torch on CPUs")
    return torch.device("cpu")


def _join(worker: Worker, signs: HeartbeatReporter, config: RunConfig) -> None:
    signs.base("rendezvous")
    if worker.rank == 0:
        worker.say("section", name="rendezvous")
    backend = "cpu:gloo,cuda:nccl" if config.backend == "nccl" else config.backend
    dist.init_process_group(backend, timeout=timedelta(seconds=config.timeouts["collective"].floor_s))


def train(worker: Worker, signs: HeartbeatReporter) -> Exit:
    """Run one generation of the builtin trainer on this rank."""
    config = from_json(RunConfig, Path(worker.run_json).read_text())
    try:
        if config.replica_recovery and config.mesh.dp_replicate > 1:
            from headway.runner.train.replica_trainer import ReplicaTrainer  # noqa: PLC0415  it needs this module

            return ReplicaTrainer(worker, Job.of(config), signs).run()
        _join(worker, signs, config)
        return Trainer(worker, Job.of(config), signs).run()
    except SupersededError:
        return Exit.SUPERSEDED
    except (RefusedError, PeerError) as error:
        print(error, file=sys.stderr)
        return Exit.UNVERIFIED
    except (DataError, UnfitError) as error:
        # Every rank gets the same error, and so would every restart.
        worker.raised(error)
        print(error, file=sys.stderr)
        return Exit.STOP


def main() -> None:
    # A scheduler signals every process of a step. Ranks agree to save and stop when the coordinator asks.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = Worker.from_environment()
    worker.section("start")
    prepare_signs()
    torch.use_deterministic_algorithms(True)
    # With deterministic algorithms torch fills each new tensor with NaN. No operation here reads memory that was not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if "CUBLAS_WORKSPACE_CONFIG" in (torch.use_deterministic_algorithms.__doc__ or ""):
        # Without it the first matrix product on a GPU raises there. torch dropped the demand after 2.9
        # (pytorch/pytorch#161749), and its own workspaces are the better ones.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    code = 1
    try:
        code = int(train(worker, report_heartbeats(worker, "start")))
    except Exception as error:
        traceback.print_exc()
        worker.raised(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # No destructor of a process group may wait for peers that are gone.
    os._exit(code)


if __name__ == "__main__":
    main()
