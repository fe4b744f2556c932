"""The records that the runner shares with all other packages, and the rules that both sides apply to them.

In: run.json and the other files of a run directory, as JSON text. Out: the same records as frozen
dataclasses, the path of every file of a run (`RunDirectory`), and the values that follow from the
records: the binding of slots to nodes, the changes in force, the exit code, the cost of a failure.
It imports nothing but the standard library, so that the launcher can import it before torch.
Every record has its schema, the reader refuses an unknown one by name, and units are in the names.

Import names from here: `from headway.runner.contract import RunConfig`. Two modules are imported themselves,
since their names are short and checking a document needs none of them: `journal` (`journal.Failure`: the lines of the
journal) and `orders` (`orders.Stop`: what the coordinator orders agents to do). The modules import each other in one direction only:
`run_config.py` imports `history.py` and `timeouts.py`, `run_directory.py` imports `verdict.py` and
`codec.py`, `journal.py` and `orders.py` import `codec.py`.
Start reading: `run_config.py`, `run_directory.py`, `verdict.py`, `codec.py` (how a record becomes JSON);
docs/records.md has the files and fields.
"""

from headway.runner.contract.base import Base, CheckpointId
from headway.runner.contract.binding import Binding, bind, node_of, partner_of, slot_of
from headway.runner.contract.cause_kind import CauseKind
from headway.runner.contract.codec import RecordError, decode, from_json, to_json
from headway.runner.contract.corpus import (
    CORPUS_SCHEMA,
    END_BYTES,
    INDEX_NAME,
    LARGEST_PERIOD,
    TOKEN_BYTES,
    CorpusIndex,
    Mixture,
    Shard,
)
from headway.runner.contract.heartbeat import HEARTBEAT, SECTIONS, HeartbeatPage
from headway.runner.contract.history import Change, in_force, samples_before
from headway.runner.contract.ledger import LEDGER_BUCKETS, cost_by_kind
from headway.runner.contract.members import MOST_REPLICAS, Members
from headway.runner.contract.metrics import MetricsLine
from headway.runner.contract.profile import ProfileRequest
from headway.runner.contract.run_config import (
    CAPTURED_TIERS,
    RUN_SCHEMA,
    STORED_TIERS,
    TIER_KINDS,
    Batch,
    Checkpoint,
    Corruption,
    Data,
    Domain,
    Every,
    Execution,
    Limits,
    Mesh,
    Model,
    Notify,
    Optimizer,
    Ports,
    Restart,
    RunConfig,
    Store,
    Tier,
    Trainer,
    coordinates,
)
from headway.runner.contract.run_directory import RunDirectory, read_verdict
from headway.runner.contract.signals import STACKS_SIGNAL
from headway.runner.contract.spec_values import with_shared, without_shared
from headway.runner.contract.submission import SubmissionOutcome, parse_outcome, read_outcome
from headway.runner.contract.text_enum import TextEnum
from headway.runner.contract.throughput import step_flops, step_rates
from headway.runner.contract.timeouts import DEFAULT_TIMEOUTS, Timeout, set_by
from headway.runner.contract.verdict import ATTEMPT_TAKEN, VERDICTS, Exit, Verdict, settled

__all__ = [
    "ATTEMPT_TAKEN",
    "CAPTURED_TIERS",
    "CORPUS_SCHEMA",
    "DEFAULT_TIMEOUTS",
    "END_BYTES",
    "HEARTBEAT",
    "INDEX_NAME",
    "LARGEST_PERIOD",
    "LEDGER_BUCKETS",
    "MOST_REPLICAS",
    "RUN_SCHEMA",
    "SECTIONS",
    "STACKS_SIGNAL",
    "STORED_TIERS",
    "TIER_KINDS",
    "TOKEN_BYTES",
    "VERDICTS",
    "Base",
    "Batch",
    "Binding",
    "CauseKind",
    "Change",
    "Checkpoint",
    "CheckpointId",
    "CorpusIndex",
    "Corruption",
    "Data",
    "Domain",
    "Every",
    "Execution",
    "Exit",
    "HeartbeatPage",
    "Limits",
    "Members",
    "Mesh",
    "MetricsLine",
    "Mixture",
    "Model",
    "Notify",
    "Optimizer",
    "Ports",
    "ProfileRequest",
    "RecordError",
    "Restart",
    "RunConfig",
    "RunDirectory",
    "Shard",
    "Store",
    "SubmissionOutcome",
    "TextEnum",
    "Tier",
    "Timeout",
    "Trainer",
    "Verdict",
    "bind",
    "coordinates",
    "cost_by_kind",
    "decode",
    "from_json",
    "in_force",
    "node_of",
    "parse_outcome",
    "partner_of",
    "read_outcome",
    "read_verdict",
    "samples_before",
    "set_by",
    "settled",
    "slot_of",
    "step_flops",
    "step_rates",
    "to_json",
    "with_shared",
    "without_shared",
]
