"""Defines the layout of a run directory (`RunDirectory`): the path of every file of a run, and which attempts and journals exist."""

from dataclasses import dataclass
from pathlib import Path

from headway.runner.contract.codec import from_json
from headway.runner.contract.verdict import Verdict


@dataclass(frozen=True)
class RunDirectory:
    """The layout of docs/records.md, one property or method per file. `attempt` selects the attempt's folder."""

    root: Path
    attempt: int = 0

    @classmethod
    def of(cls, run_json: Path, attempt: int) -> "RunDirectory":
        """Return the run directory that contains `attempts/<k>/run.json`."""
        return cls(run_json.resolve().parent.parent.parent, attempt)

    def at(self, attempt: int) -> "RunDirectory":
        """Return the directory of the same run at another attempt."""
        return RunDirectory(self.root, attempt)

    # --- the run ------------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Path:
        return self.root / "handle.json"

    @property
    def secret_file(self) -> Path:
        return self.root / "secret"

    def secret(self) -> bytes:
        return bytes.fromhex(self.secret_file.read_text().strip())

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def chain(self) -> Path:
        return self.shared / "chain"

    @property
    def checkpoints(self) -> Path:
        return self.shared / "checkpoints"

    @property
    def saved(self) -> Path:
        """The saves of a script by torch, safetensors or Lightning: one file per host."""
        return self.shared / "saved"

    @property
    def refused(self) -> Path:
        """The damaged checkpoints of a script."""
        return self.shared / "refused"

    @property
    def journals(self) -> Path:
        return self.shared / "journal"

    def journal(self, generation: int) -> Path:
        return self.journals / f"{generation:06d}.jsonl"

    def journal_files(self) -> dict[int, Path]:
        """Return the existing journals by generation, in the order of their generations."""
        numbers = sorted(int(path.stem) for path in self.journals.glob("*.jsonl") if path.stem.isdecimal())
        return {number: self.journal(number) for number in numbers if self.journal(number).exists()}

    @property
    def profiles(self) -> Path:
        return self.root / "profiles"

    @property
    def profile_request(self) -> Path:
        """The profile that is asked for; removed by who has asked."""
        return self.profiles / "request.json"

    @property
    def verified(self) -> Path:
        """The corpora whose shards the attempt has verified."""
        return self.attempt_directory / "verified.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the existing attempts in ascending order."""
        return tuple(sorted(int(path.name) for path in self.attempts.glob("*") if path.name.isdecimal() and path.is_dir()))

    def next_attempt(self) -> int:
        """Return the number of the attempt after the existing ones; 0 for the first."""
        return max(self.attempt_numbers(), default=-1) + 1

    # --- submissions to a scheduler -----------------------------------------------------------------------------------

    @property
    def submissions(self) -> Path:
        return self.root / "submissions"

    def submission_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the submissions in ascending order."""
        return tuple(sorted(int(path.name) for path in self.submissions.glob("*") if path.name.isdecimal()))

    def submitted_script(self, number: int) -> Path:
        return self.submissions / str(number) / "job.sbatch"

    def request(self, number: int) -> Path:
        """The user, folder and command of the submission."""
        return self.submissions / str(number) / "request.json"

    def outcome(self, number: int) -> Path:
        """The submission's job, or why it has none."""
        return self.submissions / str(number) / "outcome"

    # --- an attempt ---------------------------------------------------------------------------------------------------

    @property
    def attempt_directory(self) -> Path:
        return self.attempts / str(self.attempt)

    @property
    def run_json(self) -> Path:
        return self.attempt_directory / "run.json"

    @property
    def submitted_run(self) -> Path:
        """run.json as it was rendered, from which the runner opens an attempt that a batch script has begun."""
        return self.attempt_directory / "submitted" / "run.json"

    @property
    def exclude(self) -> Path:
        """The hosts that the next attempt has to do without, comma-separated, for a batch script without Python."""
        return self.attempt_directory / "exclude"

    @property
    def spec(self) -> Path:
        return self.attempt_directory / "spec.json"

    @property
    def config(self) -> Path:
        """The files of a framework's own configuration, which the script of the attempt reads."""
        return self.attempt_directory / "config"

    @property
    def launch(self) -> Path:
        """The command that `headway torchrun` launched, and the process that did."""
        return self.attempt_directory / "launch.json"

    @property
    def verdict(self) -> Path:
        return self.attempt_directory / "verdict.json"

    @property
    def excused(self) -> Path:
        """The reason why this attempt does not count as one without progress."""
        return self.attempt_directory / "excused"

    @property
    def coordinator(self) -> Path:
        return self.attempt_directory / "coordinator.json"

    @property
    def coordinators(self) -> Path:
        return self.attempt_directory / "coordinators"

    def term(self, number: int) -> Path:
        return self.coordinators / f"{number:06d}.json"

    def entered(self, node: int) -> Path:
        return self.attempt_directory / "entered" / f"{node}.json"

    @property
    def evidence(self) -> Path:
        return self.attempt_directory / "evidence"

    def stacks(self, rank: int) -> Path:
        return self.evidence / f"stacks-{rank}.txt"

    @property
    def hosts(self) -> Path:
        """The scheduler's names of the attempt's nodes, one per line in the order of node indices."""
        return self.attempt_directory / "hosts"

    @property
    def job(self) -> Path:
        """The scheduler's job that has opened the attempt: Slurm's number, or a JobSet's uid and the number of its restart."""
        return self.attempt_directory / "job"

    @property
    def nodes(self) -> Path:
        return self.attempt_directory / "nodes"

    def node(self, index: int) -> Path:
        return self.nodes / f"{index}.json"

    def keeper(self, node: int) -> Path:
        return self.attempt_directory / "keepers" / f"{node}.json"

    @property
    def logs(self) -> Path:
        return self.attempt_directory / "logs"

    def log(self, slot: int, rank: int) -> Path:
        return self.logs / str(slot) / f"{rank}.log"

    @property
    def teed(self) -> Path:
        """The rank of each log folder whose output the command prints too."""
        return self.attempt_directory / "teed"


def read_verdict(directory: RunDirectory) -> Verdict | None:
    """Return the attempt's verdict; None if there is no file, or one that cannot be read as a verdict."""
    try:
        return from_json(Verdict, directory.verdict.read_text())
    # RecordError and UnicodeDecodeError are ValueErrors.
    except (OSError, ValueError):
        return None
