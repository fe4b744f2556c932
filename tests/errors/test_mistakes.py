"""One mistake in a valid document gives one problem, at the mistake, with the text that corrects it.

The mistakes are habits from Megatron, torchtitan, Hugging Face, DeepSpeed, Slurm and Kubernetes, other notations of quantities, and slips
of the pen.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from tests.errors.test_fixes import fixed
from tests.support.tables import slow_after_first

HERE = Path(__file__).parent
JOB = (HERE / "right-job.yaml").read_text()
CLUSTER = (HERE / "iron.yaml").read_text()


J, C, INVENTORY = "job.yaml", "iron.yaml", "unit.yaml"


@dataclass(frozen=True)
class Mistake:
    """A replacement of `old` by `new` in the valid document, with the problem's `code` and its `fix`, or a part of its `hint`.

    With the fix alone the document is valid, if that `is_whole`. `more` are changes of documents that are valid with them, each a file,
    a text in it, and its replacement; a new file has none.
    """

    old: str
    new: str
    code: str
    fix: str | None = None
    hint: str = ""
    is_whole: bool = True
    more: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        return self.new.strip()[:40]


def key(old: str, new: str, hint: str = "") -> Mistake:
    """Return a field under another name; `old` is the valid one."""
    return Mistake(f"{old}:", f"{new}:", "HW201", None if hint else old.strip(" -\n"), hint)


def moved(old: str, new: str, hint: str) -> Mistake:
    """Return a field in another section."""
    return Mistake(old, new, "HW201", None, hint)


def value(old: str, new: str, code: str = "HW204", fix: str | None = None, hint: str = "") -> Mistake:
    """Return a value in another notation; the valid one is the fix."""
    fix = fix if fix is not None or hint else old.partition(": ")[2]
    return Mistake(old, f"{old.partition(': ')[0]}: {new}", code, fix, hint)


# An attempt that loses a node every few hours, and may.
OFTEN = ((J, "budget: 3", "budget: 900"), (J, "time: 7d", "time: 300d"), (C, "node_mtbf: 300d", "node_mtbf: 2d"))

# A cluster with switches, of which something observed is known.
SWITCHED = (
    (C, "    congestion", "    switches: {leaves: 8, spines: 4, ports: 64, os: [{kind: frr}]}\n    congestion"),
    (C, "name: iron", "name: iron\nignore: [{code: HW513, reason: queues by hand}, {code: HW524, reason: cabled by number}]"),
)
OBSERVED = (
    *SWITCHED,
    (
        INVENTORY,
        "",
        """\
apiVersion: headway/v1alpha1
kind: Inventory
name: unit
cluster: iron
nodes:
  - name: gpu-1
    serial: A1
    nics: [{name: mlx5_0, switch: rails-leaf-1, port: Ethernet0}, {name: mlx5_1, switch: rails-leaf-2, port: Ethernet0}]
  - name: gpu-2
    serial: A2
switches:
  - name: rails-leaf-1
    serial: B1
""",
    ),
)
# Trainers that are frameworks, and pods.
_SCRIPT = "  kind: script\n  options:\n    argv: [train.py,"
HF = (
    (
        J,
        _SCRIPT,
        '  kind: hf\n  options:\n    script: train.py\n    arguments: {model: "{model.preset}", length: "{batch.sequence}"} # [',
    ),
    (J, "  dp_shard: 16\n  tp: 2", "  dp_shard: 32"),
    (J, "  reduce: fp32\n", ""),
)
_PASSED = "{model.preset}{batch.micro}{batch.sequence}{recompute}{optimizer.lr}{optimizer.warmup_steps}{optimizer.schedule}"
LIGHTNING = (
    (
        J,
        _SCRIPT,
        f"  kind: lightning\n  options:\n    script: train.py\n    arguments: {{data.a: '{_PASSED}'}} # [",
    ),
    (J, "  reduce: fp32\n", ""),
    (J, "      keep: 3\n", ""),
)
MEGATRON = (
    (J, _SCRIPT, "  kind: megatron\n  options:\n    script: pretrain_gpt.py # ["),
    (
        J,
        "environment:\n",
        'data: {kind: indexed, options: {paths: [/data/a]}}\nenvironment:\n  CUDA_DEVICE_MAX_CONNECTIONS: "1"\n',
    ),
    (J, "      keep: 3\n", ""),
)
TITAN = (
    (J, _SCRIPT, "  kind: torchtitan # ["),
    (J, "environment:\n", "data: {kind: dataset, options: {name: c4}}\nenvironment:\n"),
)
PODS = (
    (
        C,
        "kind: slurm\n  options:\n    partition: main\n    account: research",
        f"""\
kind: kubernetes
  options:
    host_network: true
    rdma: {{resource: rdma/hca}}
    mounts: [{{path: /scratch, claim: scratch}}]
    image: registry.example.com/a@sha256:{"4f" * 32}""",
    ),
)
GROUPS = ((C, "fabrics:\n", "  - {name: more, count: 1000, cpus: 96, host_memory: 2TiB}\nfabrics:\n"),)
BASED = (
    (J, "cluster: iron\n", "extends: base.yaml\ncluster: iron\n"),
    ("base.yaml", "", "apiVersion: headway/v1alpha1\nkind: TrainingJob\npartial: true\ncluster: iron\n"),
)
EXTENDED = (
    (J, "name: case", "name: case\nextends: base.yaml"),
    ("base.yaml", "", "apiVersion: headway/v1alpha1\nkind: TrainingJob\npartial: true\nbatch: {micro: 1}\n"),
)
ETHERNET = CLUSTER[CLUSTER.index("    transport: roce") : CLUSTER.index("  - name: admin")]
INFINIBAND = (
    (C, ETHERNET, "    transport: infiniband\n    switches: {leaves: 8, spines: 4, ports: 64, os: [{kind: opensm}]}\n"),
)
BUILTIN = (
    (J, _SCRIPT, "  kind: builtin # ["),
    (J, "preset: llama-3.1-8b", "{layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn_hidden: 256, vocab_size: 512}"),
    (J, "environment:\n", "data: {kind: tokens, options: {corpora: [{path: a}]}}\nenvironment:\n"),
    (J, "  dp_shard: 16\n  tp: 2", "  dp_shard: 32"),
    (J, "recompute: full\n", ""),
)
FILES = (
    (J, _SCRIPT, "  kind: builtin # ["),
    (J, "preset: llama-3.1-8b", "{layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn_hidden: 256, vocab_size: 512}"),
    (J, "environment:\n", "data: {kind: files, options: {paths: [a]}}\nenvironment:\n"),
    (J, "  dp_shard: 16\n  tp: 2", "  dp_shard: 32"),
    (J, "recompute: full\n", ""),
)
RATES = "lr: 0.1, warmup_steps: 3, schedule: cosine, min_lr_ratio: 0.1, weight_decay: 0.1, beta1: 0.9, beta2: 0.95, eps: 1.0e-8"
ADAPTERS = "nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7], nic: ConnectX-7, nic_speed: 400Gb/s"
LARGER = f"  - {{name: more, count: 20, cpus: 96, host_memory: 2TiB, gpu: H100-SXM-80, gpus: 8, {ADAPTERS}}}\n"
TRAINER = JOB[JOB.index("trainer:") : JOB.index("optimizer:")]
APPTAINER = "account: research\n    containers: apptainer\n    apptainer: "
STORAGE = CLUSTER[CLUSTER.index("storage:") : CLUSTER.index("versions:")]
PARTIAL = CLUSTER.replace("name: iron", "name: gold\npartial: true")
SECOND = "  - {name: two, role: scale-out, transport: roce, classes: [{name: b, carries: storage, dscp: 18, lossless: true}]}\n"

JOBS = [
    # Fields that are right in another section, by the section or the trainer; sections of Kubernetes around fields that are there.
    Mistake("    join: 10m", "    grace: 90s", "HW201", None, "`grace` belongs in `resilience`"),
    Mistake("  spares: 0", "  spares: 0\n  corruption: {every: 500 steps}", "HW201", "compare", is_whole=False),
    Mistake("  spares: 0", "  spares: 0\n  corruption: {every: 500 steps}", "HW201", "replay", more=BUILTIN),
    Mistake("  spares: 0", "  spares: 0\n  corruption: true", "HW203", "{replay: 1000 steps}", more=BUILTIN),
    Mistake(
        "data: {kind: tokens",
        "data: {vocab_size: 512, kind: tokens",
        "HW201",
        None,
        "`vocab_size` belongs in `model`",
        more=BUILTIN,
    ),
    Mistake(
        "nodes: 4",
        "nodes: 4\nscheduler: {kubernetes: {metadata: {annotations: {owner: nlp}}}}",
        "HW201",
        None,
        "write `annotations: {owner: nlp}` here",
        more=PODS,
    ),
    Mistake(
        "nodes: 4",
        "nodes: 4\nscheduler: {kubernetes: {tolerations: {key: spot, effect: NoSchedule}}}",
        "HW203",
        None,
        "`[{key: spot, effect: NoSchedule}]`",
        more=PODS,
    ),
    Mistake("nodes: 4", "nodes: 4\nprolog: [date]", "HW201", "setup"),
    # A command of one line, and options as mappings.
    Mistake(TRAINER, "run: train.py --tp={layout.tp}\n", "HW203", '[train.py, "--tp={layout.tp}"]', is_whole=False),
    Mistake("[train.py,", "[train.py, {epochs: 3},", "HW203", None, "write `--epochs=3`", is_whole=False),
    Mistake("[train.py,", "[train.py, --out=~/out,", "HW703", None, "write the value out"),
    Mistake("[train.py,", f"[train.py, --wandb-key={'4f1d9a07be' * 4},", "HW215", None, "`secrets: [WANDB_API_KEY]`"),
    # The kind is wrong, not each of its fields.
    Mistake("kind: TrainingJob", "kind: Cluster", "HW211", "TrainingJob"),
    Mistake("extends: base.yaml", "extends: iron.yaml", "HW114", None, "same kind: `base.yaml`", more=EXTENDED),
    # Mends that would be refused next, and numbers at the field that is wrong.
    Mistake("warmup_steps: 200", "warmup_steps: 200\n  schedule: wsd", "HW210", None, "`decay_steps: 100`", more=TITAN),
    Mistake("warmup_steps: 200", "warmup_steps: 200\n  schedule: inverse_sqrt", "HW205", None, "`schedule: linear`"),
    Mistake(
        "warmup_steps: 200",
        "warmup_steps: 800\n  schedule: wsd\n  decay_steps: 300",
        "HW324",
        None,
        "use at most 700 for the warm-up",
        more=TITAN,
    ),
    Mistake("nodes: 4", "nodes: 4-8", "HW203", None, "write `4` or `8`", more=BUILTIN),
    Mistake("nodes: 4", "nodes: 5", "HW301", None, "write `nodes: 4`, which the layout and the batch divide"),
    Mistake("preset: llama-3.1-8b", "preset: qwen-3-235b", "HW309", "qwen3-235b-a22b", is_whole=False),
    Mistake("HF_HOME: /data/hf", "CUDA_VISIBLE_DEVICES: '0,1,2,3'", "HW418", None, "sets `gpus: 4`"),
    Mistake("nodes: 4", "nodes: 4\nignore: [{code: HW999, reason: known}]", "HW239", None, "remove the entry"),
    Mistake(
        "name: case",
        "name: finetune-llama-3-8b-instruct-with-long-context-and-lora-run-42",
        "HW407",
        None,
        "for example `finetune-llama-3-8b-instruct",
        more=PODS,
    ),
    # Fixes that follow from the folder, the document or the name of another program.
    Mistake("cluster: iron\n", "", "HW202", None, "add `cluster: iron`"),
    Mistake("apiVersion:", "apiversion:", "HW201", "apiVersion"),
    value("kind: TrainingJob", "PyTorchJob", "HW207"),
    Mistake("model:\n  preset: llama-3.1-8b", "model: meta-llama/Llama-3.1-8B", "HW203", "{preset: llama-3.1-8b}"),
    Mistake("  tp: 2\n", "  tp: 2\n  fsdp: true\n", "HW201", None, "write `sharding: parameters`", is_whole=False),
    Mistake(
        "nodes: 4", "nodes: 4\nsweep: {optimizer.lr: [0.1]}", "HW201", None, "write `grid: {optimizer.lr: [0.1]}`", is_whole=False
    ),
    Mistake(
        "- kind: shared\n      every: 100 steps\n      keep: 3", "- shared: 2h", "HW201", None, "`{kind: shared, every: 2h}`"
    ),
    Mistake("    join: 10m", "    heartbeat: 10s", "HW201", None, "write `node`"),
    value("steps: 1000", "2097152000 tokens", "HW203"),
    Mistake('"--tp={layout.tp}"', '"--tp={{layout.tp}}"', "HW703", '"--tp={layout.tp}"'),
    Mistake('"--tp={layout.tp}"', '"--tp={ layout.tp }"', "HW312", '"--tp={layout.tp}"'),
    Mistake('"--tp={layout.tp}"', '"--tp={layout.tp}", "--o={output_dir}"', "HW312", '"--o={run_directory}"'),
    # Fields that resemble one of another section, and values whose first fix would be rejected next.
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {batch.size: [8, 16]}}", "HW240", None, "known fields of `batch`"),
    Mistake("environment:\n", "secrets: [{name: HF_TOKEN, value: abc}]\nenvironment:\n", "HW201", None, "revoke it"),
    Mistake("environment:\n", "secrets: [hf-token]\nenvironment:\n", "HW204", "HF_TOKEN"),
    Mistake("HF_HOME: /data/hf", "NCCL_BUFFSIZE: 8MB", "HW436", None, 'write `"8388608"`', is_whole=False),
    Mistake("HF_HOME: /data/hf", "NCCL_DEBUG_SUBSYS: INIT,NETWORK", "HW436", '"INIT,NET"', is_whole=False),
    value("steps: 1000", "0", hint="write `1` or more"),
    Mistake("optimizer:\n", "lr_scheduler: {clip_norm: 1.0}\noptimizer:\n", "HW201", None, "`clip_norm: 1.0` under `optimizer`"),
    # Values that NCCL does not read, secrets with their value, and launchers.
    Mistake("HF_HOME: /data/hf", "NCCL_DEBUG_LEVEL: INFO", "HW436", "NCCL_DEBUG", is_whole=False),
    # The given value, converted into the form of the field.
    Mistake("nodes: 4", "nodes: 4x8", "HW203", "4"),
    Mistake("nodes: 4", "nodes: 64", "HW403", None, "for example `nodes: 4`"),
    Mistake("nodes: 4", 'nodes: 4\nscheduler: {slurm: {dependency: "1234"}}', "HW204", "afterok:1234"),
    value("micro: 1", "48", "HW305", hint="set `micro` to 1, 2, 4, 8 or 16"),
    Mistake("HF_HOME: /data/hf", "NCCL_ALGO: Rings", "HW436", "Ring"),
    Mistake("HF_HOME: /data/hf", "NCCL_PROTO: ^LL,Simpel", "HW436", '"^LL,Simple"', is_whole=False),
    Mistake("HF_HOME: /data/hf", "NCCL_IB_RETRY_CNT: '9'", "HW436", None, "use a number within them"),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['export NAME=\"run a']", "HW210", r'"export NAME=\"run a\""'),
    Mistake("HF_HOME: /data/hf", "NCCL_TURBO: '1'", "HW436", None, "check the name"),
    Mistake("environment:\n", "secrets: [WANDB_API_KEY=$WANDB_API_KEY]\nenvironment:\n", "HW204", "WANDB_API_KEY"),
    Mistake("  keep: 3\nresilience", "  keep: 3\n  horizon: 10 steps\nresilience", "HW717", None, "`1000 steps`"),
    # One letter too many or too few, in preference to a name of another section; the one missing field under an unexplained name.
    key("nodes", "node"),
    key("limits", "limit"),
    key("budget", "budgets"),
    key("micro", "per_step"),
    key("every", "rhythm"),
    Mistake("preset: llama-3.1-8b", "name: llama-3.1-8b", "HW201", "preset"),
    Mistake("optimizer:\n", "training: {seed: 1}\noptimizer:\n", "HW201", None, "at the top of the job"),
    Mistake("  HF_HOME: /data/hf", "  - {name: HF_HOME, value: /data/hf}", "HW203", None, "`{HF_HOME: /data/hf}`"),
    Mistake("  HF_HOME: /data/hf", "  - HF_HOME=/data/hf", "HW203", None, "`{HF_HOME: /data/hf}`"),
    Mistake("argv: [train.py,", 'argv: ["python train.py",', "HW210", None, "as an item of its own"),
    # Two errors of one value are one problem.
    Mistake("tp: 2", "tp: 3", "HW301", None, "`tp` can be"),
    Mistake("nodes: 4", "nodes: 500", "HW403", None, "at most 8"),
    # Typing errors, also of a section with defaults: nothing else is reported.
    key("nodes", "noeds"),
    key("nodes", "Nodes"),
    key("nodes", "num_nodes"),
    key("trainer", "trianer"),
    key("batch", "bacth"),
    key("  preset", "  prest"),
    key("optimizer", "optimiser"),
    key("cluster", "clutser"),
    # Other programs' names.
    key("  tp", "  tensor_parallel"),
    key("  tp", "  tensor_model_parallel_size"),
    key("  tp", "  tensorModelParallelSize"),
    key("  dp_shard", "  data_parallel_shard_degree"),
    key("  dp_shard", "  fsdp"),
    key("  global", "  global_batch_size"),
    key("  micro", "  micro_batch_size"),
    key("  micro", "  per_device_train_batch_size"),
    key("  sequence", "  seq_length"),
    key("  sequence", "  max_seq_len"),
    key("  lr", "  learning_rate"),
    key("  warmup_steps", "  lr_warmup_iters"),
    key("  compute", "  dtype"),
    key("  reduce", "  reduce_dtype"),
    key("recompute", "activation_checkpointing"),
    key("recompute", "gradient_checkpointing"),
    key("\nsteps", "\nmax_steps"),
    key("\nsteps", "\ntrain_iters"),
    key("environment", "env"),
    key("checkpoint", "checkpoints"),
    key("      every", "      save_interval"),
    key("  time", "  walltime"),
    key("  spares", "  hot_spares"),
    key("    budget", "    max_restarts"),
    key("    join", "    rdzv_timeout"),
    Mistake("nodes: 4", "nodes: 4\ngpus_per_node: 8", "HW201", "gpus", ""),
    moved("  tp: 2", "  tp: 2\n  data_parallel: 8", "write `dp_shard`"),
    moved("layout:\n", "tensor_parallel_size: 2\nlayout:\n", "write `tp: 2` under `layout`"),
    moved("steps: 1000", "steps: 1000\nlearning_rate: 3.0e-4", "write `lr: 0.0003` under `optimizer`"),
    moved("steps: 1000", "steps: 1000\ntp: 2", "`tp` belongs in `layout`"),
    moved("  tp: 2", "  tp: 2\n  nodes: 4", "`nodes` belongs at the top of the document"),
    moved("steps: 1000", "steps: 1000\npartition: main", "`partition` belongs in `scheduler.slurm`"),
    moved("  micro: 1", "  micro: 1\n  gradient_accumulation_steps: 8", "leave it out"),
    moved("  options:\n    argv", "  argv: [train.py]\n  options:\n    argv", "`argv` belongs under `options`"),
    Mistake("nodes: 4", "metadata: {name: case}\nspec: {nodes: 4}", "HW201", None, "write `name` at the top"),
    # Quantities.
    value("time: 7d", "7 days"),
    value("time: 7d", "7-00:00:00"),
    value("time: 7d", "1 week"),
    value("time: 7d", "604800", "HW213", hint="`604800s` for seconds"),
    value("time: 7d", "168:00", hint="`168:00:00` for hours and minutes"),
    value("time: 7d", "24hr", fix="24h"),
    value("time: 7d", "P7D"),
    value("join: 10m", "10 min"),
    value("join: 10m", "10 minutes"),
    value("every: 100 steps", "100", "HW213"),
    value("every: 100 steps", "100steps"),
    value("every: 100 steps", "100 iterations"),
    value("every: 100 steps", "30 min", fix="30m"),
    value("global: 256 sequences", "256", "HW213"),
    value("global: 256 sequences", "256 seqs"),
    value("global: 256 sequences", "256 samples"),
    value("global: 256 sequences", "2MiB tokens", fix="2Mi tokens"),
    value("global: 256 sequences", "2Mi toks", fix="2Mi tokens"),
    value("nodes: 4", '"4"', "HW203", fix="4"),
    value("nodes: 4", "4.0", "HW203", fix="4"),
    value("steps: 1000", "1k", "HW203", fix="1000"),
    value("steps: 1000", "1e3", "HW203", fix="1000"),
    value("steps: 1000", '"1,000"', "HW203", fix="1000"),
    value("lr: 3.0e-4", '"3e-4"', "HW203", fix="0.0003"),
    value("nodes: 4", "04", "HW110"),
    value("name: case", "Llama_70B", fix="llama-70b"),
    value("cluster: iron", "iron.yaml"),
    value("cluster: iron", "Iron"),
    value("cluster: iron", "iorn", "HW401"),
    # Enumerations and other values.
    value("compute: bf16", "bfloat16", "HW205"),
    value("compute: bf16", "torch.bfloat16", "HW205"),
    value("reduce: fp32", "float32", "HW205"),
    value("recompute: full", '"on"', "HW205"),
    value("- kind: shared", "local", "HW205"),
    value("- kind: shared", "sharde", "HW205"),
    # Earlier names of headway's own.
    value("- kind: shared", "disk", "HW205"),
    Mistake("[train.py,", '[train.py, "-e={checkpoint.disk.steps}",', "HW312", '"-e={checkpoint.shared.steps}"'),
    value("kind: script", "torchrun", "HW208"),
    value("preset: llama-3.1-8b", "llama-3.1-8bb", "HW309"),
    value("preset: llama-3.1-8b", "llama3.1-8b", "HW309"),
    Mistake("model:\n  preset: llama-3.1-8b", "model: llama-3.1-8b", "HW203", "{preset: llama-3.1-8b}"),
    Mistake("{optimizer.lr}", "{optimizer.learning_rate}", "HW312", '"--lr={optimizer.lr}"'),
    Mistake("{batch.global}", "{batch.global_batch_size}", "HW312", '"--gb={batch.global}"'),
    value("HF_HOME: /data/hf", "1", "HW203", fix='"1"'),
    Mistake("  HF_HOME", "  hf-home", "HW204", "HF_HOME"),
    # Forms: the fix is the text in the right form.
    Mistake("    budget: 3", "    budget: unlimited", "HW203", None, "for example `1000`"),
    value("tp: 2", "Auto", "HW203", fix="auto"),
    value("global: 256 sequences", "2^20 tokens", fix="1Mi tokens"),
    value("every: 100 steps", "hourly", fix="1h"),
    value("lr: 3.0e-4", "3x10^-4", "HW203", fix="0.0003"),
    value("lr: 3.0e-4", "3e\u22124", "HW203", fix="0.0003"),
    value("steps: 1000", "1000# a try", "HW203", fix="1000 # a try"),
    Mistake("nodes: 4", "nodes: 4:8", "HW203", "{min: 4, max: 8}", is_whole=False),
    Mistake("nodes: 4", "nodes: 4-8", "HW203", "{min: 4, max: 8}", is_whole=False),
    Mistake("  restart:\n    budget: 3", "  restart: 3", "HW203", "{budget: 3}"),
    Mistake("steps: 1000", "steps: 1000\nmounts: [/data:/data]", "HW203", "{source: /data, target: /data}", is_whole=False),
    Mistake("steps: 1000", "steps: 1000\nsetup: [export NOTE=run: first]", "HW203", None, '`"export NOTE=run: first"`'),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {exclude: 'n[1-4'}}", "HW204", '"n[1-4]"'),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {exclude: 'n[01-04,n07'}}", "HW204", '"n[01-04],n07"'),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {constraint: '[a|b'}}", "HW204", '"[a|b]"'),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {sbatch: [mail-type=FAIL]}}", "HW204", "--mail-type=FAIL"),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {sbatch: [-p debug]}}", "HW204", None, "set `partition: debug`"),
    Mistake("steps: 1000", "steps: 1000\nscheduler: {slurm: {sbatch: [--time=10h]}}", "HW210", None, "set `limits.attempt.time`"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: \u201c/data/hf\u201d", "HW703", "/data/hf"),
    Mistake("[train.py,", "[train.py, \u2013data=/d,", "HW703", "--data=/d"),
    Mistake("[train.py,", '[train.py, "-m=${model.preset}",', "HW703", '"-m={model.preset}"'),
    Mistake("nodes: 4", "nodes: 4\nignore: [HW427]", "HW203", None, "{code: HW427, reason: ...}"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: '{steps}'", "HW703", None, "`--steps={steps}`"),
    Mistake("steps: 1000", "steps: 1000\nsecrets: [{name: HF, key: token}]", "HW210", None, "leave `key` out"),
    Mistake(
        "{precision.compute}", "{?precision.compute=bfloat16}", "HW312", '"--prec={?precision.compute=bf16}"', is_whole=False
    ),
    Mistake("  compute: bf16\n  reduce: fp32", "  bf16", "HW203", "{compute: bf16}", is_whole=False),
    Mistake("nodes: 4", "nodes: {minimum: 2, maximum: 4}", "HW203", None, "`{min: 2, max: 4}`", is_whole=False),
    Mistake("nodes: 4", "nodes: 0", "HW204", None, "write `1` or more"),
    Mistake("    budget: 3", "    budget: always", "HW203", None, "`budget: 3`"),
    Mistake("warmup_steps: 200", "warmup_ratio: 0.2", "HW201", None, "`warmup_steps: 200`"),
    Mistake("warmup_steps: 200", "warmup_steps: 200\n  betas: [0.9, 0.99]", "HW201", None, "`beta1: 0.9` and `beta2: 0.99`"),
    Mistake("nodes: 4", "nodes: 4\nvolumes: ['/data:/corpus']", "HW201", None, "`mounts: [{source: /data, target: /corpus}]`"),
    Mistake("nodes: 4", "nodes: 4\nmounts: [{source: data/corpus}]", "HW204", None, "`/.../data/corpus`"),
    Mistake("nodes: 4", "nodes: 4\nscheduler: {slurm: {constraint: [nvme, ib]}}", "HW203", None, '`"nvme&ib"`'),
    Mistake("nodes: 4", "nodes: 4\nscheduler: {slurm: {qos: high prio}}", "HW204", "high-prio"),
    value("lr: 3.0e-4", "3,0e-4", "HW203", fix="0.0003"),
    value("warmup_steps: 200", "0.2", "HW203", fix="200"),
    value("global: 256 sequences", "2097152", "HW213", fix="2097152 tokens"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: [{name: HF, secret: tracking}]", "HW201", "source", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nsetup: [source /opt/venv/bin/activate]", "HW210", ". /opt/venv/bin/activate"),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['if [ -f e ]; then . ./e']", "HW210", '"if [ -f e ]; then . ./e; fi"'),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['for a in b; do', echo $a]", "HW210", None, "end it with `done`", is_whole=False),
    Mistake("nodes: 4", 'nodes: 4\nsetup: [A=1, "if true\\nthen B=1"]', "HW210", None, "end it with `fi`", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nsetup: [export OMP_NUM_THREADS = 8]", "HW210", "export OMP_NUM_THREADS=8"),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['[[ -d /s ]] || mkdir /s']", "HW210", '"[ -d /s ] || mkdir /s"'),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['hosts=($HOSTS)']", "HW210", None, "a variable with blanks", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['#SBATCH --qos=high']", "HW210", None, "under `scheduler.slurm`", is_whole=False),
    Mistake(
        "nodes: 4", "nodes: 4\nsetup: [torchrun train.py]", "HW210", None, "name the training script in `run`", is_whole=False
    ),
    Mistake("HF_HOME: /data/hf", 'NCCL_TIMEOUT: "1800"', "HW436", None, "`resilience.timeouts.collective`", is_whole=False),
    Mistake("HF_HOME: /data/hf", 'TORCH_NCCL_ASYNC_ERROR_HANDLING: "true"', "HW436", '"1"'),
    Mistake(
        "HF_HOME: /data/hf",
        "PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:128,expandable_segment=True'",
        "HW436",
        '"max_split_size_mb:128,expandable_segments:True"',
    ),
    # Arithmetic: the problem is at the value to change.
    Mistake("global: 256 sequences", "global: 2M tokens", "HW323", "2Mi tokens", "(256 sequences)"),
    Mistake("spares: 0", "spares: 5", "HW403", None, "use at most 8 in total"),
    # Syntax.
    Mistake("name: case", 'name: "case', "HW105", '"case"'),
    Mistake("HF_HOME: /data/hf", "HF_HOME: '/data/hf", "HW105", "'/data/hf'"),
    Mistake("    budget: 3", "\tbudget: 3", "HW105", "    "),
    Mistake("nodes: 4", "nodes:4", "HW105", "nodes: 4"),
    Mistake("nodes: 4", "nodes = 4", "HW105", "nodes: 4"),
    Mistake("nodes: 4", "nodes 4", "HW105", None, "put `: ` after the field's name"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: @data", "HW105", '"@data"'),
    Mistake("HF_HOME: /data/hf", "HF_HOME: data: hf", "HW105", '"data: hf"'),
    Mistake("HF_HOME: /data/hf", 'HF_HOME: "data" hf', "HW105", '"data hf"'),
    Mistake("argv: [", "argv: [[", "HW105", None, "close it with `]`"),
    Mistake("  tp: 2", " tp: 2", "HW105", "  ", "indent it by 2 spaces, like `dp_shard`"),
    Mistake("nodes: 4", "  nodes: 4", "HW105", "", "indent it by 0 spaces, like `cluster`"),
    # A line in the column of another section, items without their space or dash, and texts that begin like a mapping.
    Mistake("      every: 100 steps", "    every: 100 steps", "HW105", "      ", "indent it by 6 spaces, like `kind`"),
    Mistake("      every: 100 steps", "        every: 100 steps", "HW105", "      ", "indent it by 6 spaces, like `kind`"),
    Mistake("    budget: 3", "   budget: 3\n    refill_steps: 9", "HW105", "    ", "indent it by 4 spaces"),
    Mistake("    - kind: shared", "    -kind: shared", "HW105", "- kind: shared"),
    Mistake("environment:\n", "setup:\n  - export A=1\n  -export B=2\nenvironment:\n", "HW105", "- export B=2"),
    Mistake("environment:\n", "setup:\n  -export A=1\n  -export B=2\nenvironment:\n", "HW203", None, "put a blank after the `-`"),
    Mistake("environment:\n", "setup:\n  - export A=1\n  export B=2\nenvironment:\n", "HW105", "- export B=2"),
    Mistake("checkpoint:\n", "checkpoint\n", "HW105", "checkpoint:"),
    Mistake("  tp: 2", "  tp = 2", "HW105", "tp: 2"),
    Mistake("cluster: iron", "cluster: {iron} # the only one", "HW203", None, ""),
    Mistake("argv: [train.py,", "argv: [train.py, {?compile}--compile,", "HW105", None, "quote", is_whole=False),
    Mistake("cluster: iron", "cluster: ${CLUSTER}", "HW204", None, "for example `cluster: iron`"),
    Mistake("nodes: 4", "nodes: $NODES", "HW203", None, "in place of `$NODES`, which nothing fills in"),
    Mistake("nodes: 4", "nodes: {nodes}", "HW203", None, "in place of `{nodes}`"),
    Mistake("lr: 3.0e-4", 'lr: "{{ lr }}"', "HW203", None, "for example `lr: 0.0003`"),
    Mistake("time: 7d", "time: ${TIME:-7d}", "HW204", None, "in place of `${TIME:-7d}`"),
    Mistake("recompute: full", "recompute: <mode>", "HW205", None, "in place of `<mode>`"),
    value("time: 7d", "30m12h", fix="12h30m"),
    value("join: 10m", "15m30", fix="15m30s"),
    Mistake("nodes: 4", "nodes => 4", "HW105", "nodes: 4"),
    Mistake("nodes: 4", "nodes\uff1a 4", "HW105", "nodes: 4"),
    Mistake("  attempt:\n    time: 7d", "  attempt:\n  time: 7d", "HW203", None, "indent `time` below `attempt`"),
    Mistake("environment:\n", "secrets:\n- HF_TOKEN\n  - API_KEY\nenvironment:\n", "HW204", None, "indent the `- ` of `API_KEY`"),
    # The only name or value that the rest of the document, or of the section, allows.
    Mistake(
        "preset: llama-3.1-8b", "preset: llama-3.1\n  size: 8b", "HW201", None, "write `preset: llama-3.1-8b`", is_whole=False
    ),
    Mistake(
        "preset: llama-3.1-8b", "preset: llama-3.1-8b\n  max_seq_len: 8192", "HW201", None, "leave it out: rotary", is_whole=False
    ),
    Mistake("preset: llama-3.1-8b", "preset: phi-4", "HW309", None, "set `config`"),
    Mistake("nodes: 4", "nodes: 4\ngpu: H100-SXM-80", "HW201", None, "set `gpu` of a node group in the cluster"),
    Mistake(
        "  spares: 0", "  spares: 0\n  elastic: {min: 2, max: 4}", "HW201", None, "write `nodes: {min: 2, max: 4}` at the top"
    ),
    Mistake("  compute: bf16", "  compute: bf16\n  dtype: fp32", "HW201", "parameters", is_whole=False),
    Mistake("  compute: bf16", "  compute: bf16\n  fp8: true", "HW201", None, "write `compute: fp8`", is_whole=False),
    Mistake("recompute: full", "gradient_checkpointing: true", "HW201", None, "write `recompute: full`"),
    Mistake("nodes: 4", "nodes: 4\nmounts: [{source: /a, path: /b}]", "HW201", "target", is_whole=False),
    Mistake("environment:\n", "envs: {A: b}\nenvironment:\n", "HW201", None, "move what is in it to `environment`"),
    Mistake("environment:\n", "secrets: [HF_HOME]\nenvironment:\n", "HW215", None, "leave `HF_HOME` out of `secrets`"),
    Mistake(
        "optimizer:\n", "lr_scheduler: {decay_type: cosine}\noptimizer:\n", "HW201", None, "`schedule: cosine` under `optimizer`"
    ),
    Mistake(
        "nodes: 4",
        "nodes: 4\nsweep: {points: {optimizer.lr: [1.0e-4, 3.0e-4]}}",
        "HW203",
        None,
        "[{optimizer.lr: 0.0001}, {optimizer.lr: 0.0003}]",
    ),
    Mistake("nodes: 4", "nodes:\u00a04", "HW105", " "),
    Mistake("nodes: 4", "nodes: 4\n---", "HW112", None, "remove the `---`"),
    Mistake("  dp_shard: 16\n", "  dp_shard:16\n", "HW105", "dp_shard: 16"),
    Mistake("compute: bf16", "compute: @bf16", "HW105", '"@bf16"', "leave the `@` out", is_whole=False),
    Mistake("[train.py,", "[train.py, {?compile}--compile,", "HW105", None, "quote", is_whole=False),
    Mistake("optimizer:\n  lr: 3.0e-4\n  warmup_steps: 200", "optimizer: {warmup_steps: 200, lr: 0,0003}", "HW110", "0.0003"),
    # A list: the replacement is accepted.
    value("cluster: iron", "{name: iron}", "HW203", hint="`iron`"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: {name: HF, other: X}", "HW203", None, "`[name, other]`", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {optimizer.warmup_steps: 1}}", "HW203", "[1]"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {optimizer.warmup_steps: 1..3}}", "HW203", "[1, 2, 3]"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {optimizer: {lr: [1e-4]}}}", "HW203", None, "write `optimizer.lr: [0.0001]`"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {optimizer.learning_rate: [1e-4]}}", "HW240", "optimizer.lr"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {optimizer.warmup_steps: [1, 1]}}", "HW240", None, "remove one of the two"),
    Mistake("nodes: 4", "nodes: 4\nextends: {file: base.yaml}", "HW203", None, "`base.yaml`", is_whole=False),
    value("micro: 1", "[1, 2]", "HW203", hint="one number"),
    value("micro: 1", "[a, b]", "HW203", hint="`2`"),
    # A program in the wrong form does not belong to the default trainer.
    Mistake("trainer:\n  kind: script\n  options:\n    argv: [train.py,", "run: [3,", "HW203", '"3"', is_whole=False),
    Mistake("join: 10m", "join: 600000", "HW213", "600000ms"),
    Mistake(
        "  HF_HOME: /data/hf",
        "  HF: {valueFrom: {secretKeyRef: {name: hf, key: token}}}",
        "HW203",
        None,
        "secrets: [{name: HF, source: hf",
    ),
    Mistake(
        "    - kind: shared\n      every: 100 steps",
        "    - kind: shared\n    - every: 100 steps",
        "HW202",
        None,
        "remove the `- `",
    ),
    Mistake(
        "    - kind: shared\n      every: 100 steps\n      keep: 3",
        "    - shared: {every: 100 steps}",
        "HW201",
        None,
        "{kind: shared, every: 100 steps}",
    ),
    Mistake("  lr: 3.0e-4", "  lr: 3.0e-4\n  min_lr: 3.0e-5", "HW201", None, "write `min_lr_ratio: 0.1`"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: [{env: HF, source: hf}]", "HW201", "name", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nignore: [{code: HW4270, reason: measured}]", "HW204", "HW427", is_whole=False),
    Mistake("  kind: script\n", "  type: script\n", "HW201", "kind"),
    # A name with the unit of its value.
    Mistake("    join: 10m", "    join_minutes: 10", "HW201", None, "write `join: 10m`"),
    Mistake(
        "  tiers:\n    - kind: shared\n      every: 100 steps",
        "  tiers:\n    - kind: shared\n      every_steps: 100",
        "HW201",
        None,
        "`every: 100 steps`",
    ),
    Mistake("nodes: 4", "nodes: 4\ncode: {commit: 9b2c4d1}", "HW204", None, "`git rev-parse 9b2c4d1`"),
    Mistake(
        "nodes: 4",
        "nodes: 4\nscheduler: {kubernetes: {tolerations: [{key: spot, tolerationSeconds: 30}]}}",
        "HW201",
        "seconds",
        is_whole=False,
    ),
    # Half of a mistake, or a mistake whose first fix would be rejected next.
    Mistake("    join: 10m", "    join: 10m\n    replica: 9m", "HW708", None, "leave it out"),
    Mistake('"--tp={layout.tp}"', '"--tp=${layout.tp}"', "HW703", '"--tp={layout.tp}"'),
    Mistake('"--tp={layout.tp}"', '"--tp=${layout.tpp}"', "HW312", '"--tp={layout.tp}"'),
    Mistake('"--tp={layout.tp}"', '"--tp={layout.tp}", "--bf16{?precision.bf16}"', "HW312", '"--bf16{?precision.compute=bf16}"'),
    Mistake(
        "nodes: 4",
        "nodes: 4\nhistory: [{from_step: 10, set: {optimizer.lr:0.001}}]",
        "HW219",
        "optimizer.lr: 0.001",
        is_whole=False,
    ),
    Mistake("environment:\n", 'setup:\n  - "export A=1\n  - export B=2\nenvironment:\n', "HW105", '"export A=1"'),
    Mistake("      every: 100 steps", "\t\tevery: 100 steps", "HW105", "      "),
    # A number of steps in another notation is none of tokens; a list of names and values is a mapping; a run has its own name.
    value("steps: 1000", "1e5", "HW203", fix="100000"),
    value("steps: 1000", "100_000", "HW203", fix="100000"),
    value("steps: 1000", "100,000", "HW203", fix="100000"),
    Mistake(
        "environment:\n  HF_HOME: /data/hf",
        "env: [{name: HF_HOME, value: /data/hf}]",
        "HW201",
        None,
        "write `environment: {HF_HOME: /data/hf}`",
        is_whole=False,
    ),
    Mistake("[train.py,", '[train.py, "--run={run_id}",', "HW312", '"--run={run}"'),
    # What a name means here, not elsewhere.
    Mistake(
        "nodes: 4", "nodes: 4\nmodules: [cuda, nccl]", "HW201", None, "write `setup: [module load cuda nccl]`", is_whole=False
    ),
    Mistake("nodes: 4", "nodes: 4\ndescription: a run", "HW201", None, "leave it out; a comment begins with `#`"),
    Mistake("nodes: 4", "nodes: 4\ndataset: c4", "HW201", None, "pass it to the script as an argument"),
    Mistake("  kind: script", "  kind: script\n  num_nodes: 8", "HW201", None, "write `nodes: 8` at the top of the document"),
    Mistake(
        "trainer:\n  kind: script\n  options:\n    argv: [train.py,",
        "args: [--fast]\nrun: [train.py,",
        "HW201",
        None,
        "run: [train.py",
    ),
    Mistake(
        "batch:\n  global: 256 sequences\n  micro: 1\n  sequence: 8192",
        "batch:\nglobal: 256 sequences\nmicro: 1\nsequence: 8192",
        "HW203",
        None,
        "indent `global`, `micro`, `sequence` below `batch`",
    ),
    Mistake("nodes: 4", "nodes: 4\ngroup: None", "HW204", None, "leave it out"),
    Mistake("nodes: 4", "nodes: 4\nscheduler: {slurm: {dependency: afterok}}", "HW204", None, "for example `afterok:1234`"),
    # Numbers of a job that its cluster or its other numbers exclude.
    Mistake(
        "nodes: 4", "nodes: 4\nsweep: {grid: {batch.micro: [1, 3]}}", "HW305", None, "use another value of `batch.micro` there"
    ),
    Mistake("nodes: 4", "nodes: 4\nsweep: {}", "HW240", None, "list values by field under `grid`"),
    Mistake("warmup_steps: 200", "warmup_steps: 1000", "HW308", None, "use less than 1000"),
    Mistake("    time: 7d", "    time: 7d\n  run:\n    time: 1d", "HW708", None, "set `limits.run.time` to more than 7d"),
    Mistake("    time: 7d", "    time: 7d\n  run:\n    gpu_hours: 100", "HW708", None, "an attempt's `time` to less than 3h"),
    Mistake("    time: 7d", "    time: 7d\n    gpu_hours: 0.1", "HW417", None, "use fewer nodes, or raise the limit"),
    Mistake("budget: 900", "budget: 3", "HW708", None, "use for example `budget: 600`", more=OFTEN),
    Mistake("nodes: 4", "nodes: 4\ngpus: 32", "HW434", None, "use at most 8"),
    Mistake("nodes: 4", "gpus: 4096\nnodes: 4", "HW204", None, "write the GPUs of each node"),
    Mistake("preset: llama-3.1-8b", "preset: llama-3.1-8b\n  rope_theta: 0.5", "HW329", None, "did you mean `10000`?"),
    Mistake(
        "spares: 0",
        "spares: 0\n  grace: 2s",
        "HW708",
        None,
        "for example `grace: 2m`",
        more=((J, "nodes: 4", "nodes: 8"), (J, "dp_shard: 16", "dp_shard: 32")),
    ),
    Mistake(
        "spares: 0", "spares: 0\n  corruption: {compare: 2000 steps}", "HW701", None, "use at most 1000 steps", is_whole=False
    ),
    Mistake("environment:\n", "secrets: ['hook://x']\nenvironment:\n", "HW204", None, "write the name of a variable"),
    # Variables of NCCL.
    Mistake("HF_HOME: /data/hf", "NCCL_P2P_LEVEL: FOO", "HW436", None, "use LOC, NVL, PIX, PXB, PHB or SYS"),
    Mistake("HF_HOME: /data/hf", 'TORCH_NCCL_BLOCKING_WAIT: "1"', "HW436", None, "unless you are looking for a fault"),
    Mistake("HF_HOME: /data/hf", "NCCL_MIN_NCHANNELS: four", "HW436", None, "write a number in quotes"),
    # Files and names.
    Mistake("[train.py,", "[trian.py,", "HW412", "train.py"),
    Mistake("cluster: iron", "cluster: foo.yaml", "HW204", None, "write the `name` in that document"),
    Mistake("nodes: 4", "nodes: 4\ncode: {commit: main}", "HW204", "HEAD", is_whole=False),
    Mistake("nodes: 4", "nodes: 4\nignore: [{code: 427, reason: x}]", "HW203", "HW427", is_whole=False),
    Mistake(
        "field: trainer.options.argv",
        "field: trainer.option",
        "HW238",
        '"trainer.options.argv[0]"',
        more=(
            (J, "nodes: 4", "nodes: 4\nignore: [{code: HW412, field: trainer.options.argv, reason: x}]"),
            (J, "[train.py,", "[trian.py,"),
        ),
    ),
    Mistake("- kind: shared", "- kind: s3", "HW205", None, "with the bucket as its `url`"),
    Mistake(
        "keep: 3\n  keep",
        "keep: 3\n    - {kind: remote, every: 200 steps, url: 'gcs://b/c'}\n  keep",
        "HW204",
        "gs://b/c",
        is_whole=False,
    ),
    Mistake(
        "keep: 3\n  keep",
        "keep: 3\n    - {kind: remote, every: 200 steps, url: 's3://b/c'}\n  keep",
        "HW705",
        None,
        "add it to the cluster's `storage`",
    ),
    # Values of another type.
    value("time: 7d", "unlimited", hint="leave it out where there is no limit"),
    value("steps: 1000", "0x3e8", "HW203"),
    value("sequence: 8192", "8k", "HW203"),
    Mistake("warmup_steps: 200\nsteps: 1000", "warmup_steps: 3%", "HW203", None, "write a number of steps"),
    Mistake("nodes: 4", "nodes: {min: 4}", "HW203", None, "write both ends: `{min: 4, max: ...}`"),
    Mistake("nodes: 4", "nodes: 4\noverlap: true", "HW203", "{parameters: true, gradients: true}", is_whole=False),
    Mistake(
        "batch:\n  global: 256 sequences\n  micro: 1\n  sequence: 8192", "batch: 256", "HW203", None, "{global: 256 sequences"
    ),
    Mistake("  restart:\n    budget: 3", "  restart: budget:3", "HW203", "{budget: 3}"),
    Mistake("  restart:\n    budget: 3", "  restart: budget:3 no_progress:2", "HW203", None, "put a space after the `:`"),
    Mistake(
        "nodes: 4",
        "nodes: 4\nsweep: {grid: {optimizer.lr: {min: 1e-4, max: 3e-4}}}",
        "HW203",
        None,
        "for example `[0.0001, 0.0003]`",
    ),
    Mistake(
        "    - kind: shared\n      every: 100 steps\n      keep: 3",
        "    kind: shared\n    every: 100 steps\n    hop: 3",
        "HW203",
        None,
        "begin it with `- `: a list of one item",
    ),
    Mistake(
        "nodes: 4", "nodes: 4\nhistory: [{from_step: 20, skip_samples: some steps}]", "HW203", None, "write a number of samples"
    ),
    # Places of fields in `history`, and names in arguments, have no value for a hint.
    Mistake(
        "nodes: 4",
        "nodes: 4\nhistory: [{from_step: 20, set: {optimizer.betas: 0.1}}]",
        "HW219",
        None,
        "write `beta1: 0.9` and `beta2: 0.95`",
    ),
    Mistake("[train.py,", '[train.py, "--d={num_layers_per_virtual_pipeline_stage}",', "HW312", None, "divided by ..."),
    value("lr: 3.0e-4", "3.0e -4", "HW203", fix="0.0003"),
    value("lr: 3.0e-4", "3/10000", "HW203", fix="0.0003"),
    Mistake("nodes: 4\n", "nodes: 4\ngpus: h100:8\n", "HW203", "8"),
    Mistake("environment:\n", "secrets: (HF_TOKEN WANDB_KEY)\nenvironment:\n", "HW203", "[HF_TOKEN, WANDB_KEY]"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {seed: []}}", "HW204", None, "write one item or more"),
    Mistake("environment:\n", "setup: |\n  export A=1\n  export B=2\nenvironment:\n", "HW203", None, "export A=1"),
    Mistake("nodes: 4", "nodes: 4\nscheduler: {slurm: {sbatch: [-M north]}}", "HW204", "--clusters=north"),
    # Fields of the wrong section, or with a part of their place in their name.
    Mistake("  tp: 2", "  tp: 2\n  micro: 1\n  sequence: 8192", "HW201", None, "they belong in `batch`"),
    Mistake("  options:\n    argv: [", "  module: true\n  argv: [", "HW201", None, "they belong under `options`"),
    Mistake("  restart:\n    budget: 3", "  restart.budget: 3", "HW201", None, "write `restart: {budget: 3}`"),
    Mistake(
        "nodes: 4", "nodes: 4\nhistory: [{from_step: 9, optimizer.lr: 0.1}]", "HW201", None, "write `set: {optimizer.lr: 0.1}`"
    ),
    Mistake(
        "nodes: 4", "nodes: 4\nhistory: [{from_step: 9, optimizer: {lr: 0.1}}]", "HW201", None, "write `set: {optimizer.lr: 0.1}`"
    ),
    Mistake("precision:\n  compute: bf16\n  reduce: fp32", "precision: {compute:bf16, reduce: fp32}", "HW201", "compute: bf16"),
    # Bases.
    Mistake("cluster: iron", "cluster: gold", "HW401", None, "leave `partial` out there", more=(("gold.yaml", "", PARTIAL),)),
    Mistake("name: case", "name: case\nextends: job.yaml", "HW114", None, "name the base in `extends`"),
    Mistake(
        "nodes: 4\n",
        f"nodes: 4\ncode: {{image: 'docker://a/b@sha256:{'4f' * 32}'}}\n",
        "HW204",
        f"a/b@sha256:{'4f' * 32}",
        more=((C, "account: research", "account: research\n    containers: pyxis"),),
    ),
    Mistake(
        "nodes: 4\nmodel:\n  preset: llama-3.1-8b\nlayout:\n  dp_shard: 16",
        "nodes: 4\ngpus: 4\nmodel:\n  preset: llama-3.1-8b\nlayout:\n  dp_shard: 8",
        "HW434",
        None,
        "leave `gpus` out, or have the cluster's owner remove `exclusive`",
        more=((C, "account: research", "account: research\n    exclusive: true"),),
    ),
    Mistake(
        "environment:\n  HF_HOME: /data/hf", "secrets: [HF_TOKEN]\nenvironment:\n  HF_TOKEN: ''", "HW215", None, "remove it there"
    ),
    Mistake(
        "nodes: 4",
        "nodes: 9",
        "HW403",
        None,
        "or `group: more`, which has them",
        more=((C, "fabrics:\n", f"{LARGER}fabrics:\n"),),
    ),
    Mistake("nodes: 4", "nodes: 4\nsetup: ['[[ $A =~ b ]]']", "HW210", None, "write it with `[`, or with `case`"),
    Mistake("nodes: 4", "nodes: 4\nsweep: {grid: {run: [[a]]}}", "HW240", None, "or `trainer.options.argv`"),
    Mistake(
        "optimizer:\n  lr: 3.0e-4\n  warmup_steps: 200", f"lr_scheduler: {{{RATES}}}", "HW201", None, "fields under `optimizer`"
    ),
    Mistake("environment:\n", 'setup:\n  - echo {"a": 1}\nenvironment:\n', "HW203", None, r'`"echo {\"a\": 1}"`'),
    Mistake("nodes: 4", "nodes: 4\nsetup: [[a b, c]]", "HW203", None, "write each as an item of the list around it"),
    Mistake("name: case", "{{ a }}: b\nname: case", "HW109", None, "render the template first"),
    Mistake("cluster: iron", "cluster: null", "HW202", None, "leave it out, or write a value", more=BASED),
    # The builtin trainer.
    Mistake("{path: a}", "{path: a, weight: 0}", "HW204", None, "for example `weight: 0.1`", more=BUILTIN),
    Mistake(
        "data: {kind: tokens, options: {corpora: [{path: a}]}}",
        "data: corpus/*.txt",
        "HW203",
        "{kind: files, options: {paths: [corpus/*.txt]}}",
        is_whole=False,
        more=BUILTIN,
    ),
    # Less data than one step reads: 32 sequences of 8192 bytes.
    Mistake(
        "data: {kind: tokens, options: {corpora: [{path: a}]}}",
        "data: {kind: files, options: {paths: [train.py], limit: 100kB}}",
        "HW307",
        None,
        "read more, for example `limit: 8MB`",
        more=BUILTIN,
    ),
    # Trainers that are frameworks.
    Mistake(
        "kind: hf",
        "kind: megatron",
        "HW306",
        None,
        "use the trainer `builtin` or `hf`",
        more=(*HF, (J, "      keep: 3\n", ""), (C, "    gpu: H100-SXM-80\n    gpus: 8\n", "    procs: 8\n")),
    ),
    Mistake("preset: llama-3.1-8b", "preset: llama-3.1-405b", "HW306", None, "set `compute: fp8` in `precision`", more=TITAN),
    Mistake("  compute: bf16", "  compute: fp8", "HW306", None, "use `bf16`, or name a function of yours", more=TITAN),
    Mistake("script: train.py", "script: torchrun", "HW210", None, "name the script", more=HF),
    Mistake("script: train.py", "script: torchrun train.py", "HW210", "train.py", more=HF),
    Mistake("script: train.py", "script: train.py --fast", "HW210", None, "write `train.py`, and its arguments", more=HF),
    Mistake("arguments: {", "arguments: {rate: {optimizer.lr}, ", "HW203", None, 'quote it: `rate: "{optimizer.lr}"`', more=HF),
    Mistake("arguments: {", "arguments: {learning_rate: 3, ", "HW327", None, "remove `learning_rate`", more=HF),
    Mistake(
        "arguments: {", "arguments: {learning_ratee: 3, ", "HW328", None, "remove it: the job's `optimizer.lr` sets", more=HF
    ),
    Mistake("dp_shard: 32", "tp: 3", "HW306", None, "set `tp: 1`, or leave it out", more=HF),
    Mistake("nodes: 4", "nodes: {min: 2, max: 4}", "HW306", None, "write `nodes: 4`", more=HF),
    Mistake("paths: [/data/a]", "paths: [/data/a.bin]", "HW307", "/data/a", more=MEGATRON),
    Mistake(
        "every: 100 steps", "every: 100 steps\n      keep: 3", "HW210", None, "remove old checkpoints yourself", more=MEGATRON
    ),
    Mistake(
        "every: 100 steps",
        "every: 100 steps\n    - {kind: memory, every: 10 steps}",
        "HW306",
        None,
        "leave this tier out: the `shared` one is there",
        more=MEGATRON,
    ),
    Mistake(
        "kind: dataset, options: {name: c4}", "kind: c4", "HW208", None, "`kind: dataset` and `options: {name: c4}`", more=TITAN
    ),
    Mistake(
        "kind: dataset, options: {name: c4}",
        "kind: tokens, options: {corpora: [{path: a}]}",
        "HW208",
        None,
        "it is a kind of the trainer `builtin`",
        more=TITAN,
    ),
    Mistake("kind: torchtitan", "kind: torchtitan\n  options: {module: llama3}", "HW210", None, "add `config`", more=TITAN),
    Mistake("nodes: 4", "nodes: 4\nmounts: [{source: '/a:b'}]", "HW423", None, "use a path without it", more=PODS),
    Mistake("  tp: 2", "  tp: 2\n  sharding: gradients", "HW306", None, "leave `sharding` out", more=LIGHTNING),
    Mistake("  tp: 2", "  dp_replicate: 2\n  sharding: gradients", "HW306", None, "or set `dp_replicate: 1`", more=LIGHTNING),
    Mistake("  tp: 2", "  tp: 2\n  virtual_stages: 2", "HW306", None, "set `pp`, or `virtual_stages: 1`", more=MEGATRON),
    Mistake("nodes: 4", "nodes: 4\noverlap: {parameters: true}", "HW306", None, "set `gradients: true` too", more=MEGATRON),
    Mistake(
        "preset: llama-3.1-8b", "preset: llama-3.1-8b\n  linear_bias: true", "HW306", None, "set `qkv_bias: true`", more=MEGATRON
    ),
    Mistake("nodes: 4", "nodes: 4\noverlap: {experts: true}", "HW306", None, "or leave `experts` out", more=TITAN),
    # Conditions and names in arguments.
    Mistake("[train.py,", '[train.py, "--c{?layout.tpp}",', "HW312", '"--c{?layout.tp}"'),
    Mistake("[train.py,", '[train.py, "--r={local_rank}",', "HW312", None, "in its environment, as `LOCAL_RANK`"),
    Mistake("[train.py,", '[train.py, "--e={checkpoint.shared.seconds}",', "HW312", '"--e={checkpoint.shared.steps}"'),
    Mistake("[train.py,", '[train.py, "--d={zero_optimization}",', "HW312", None, "write `sharding` of `layout`"),
    Mistake("[train.py,", "[train.py, '>', log.txt,", "HW703", None, "remove it and what belongs to it"),
    Mistake("[train.py,", "[--fast, train.py,", "HW210", None, "put the script first"),
    Mistake("argv: [train.py,", 'argv: ["train.py --fast",', "HW210", None, "write each argument as an item of its own"),
    Mistake("argv: [train.py,", "module: true\n    python: false\n    argv: [train,", "HW210", None, "remove one of the two"),
    # Syntax.
    Mistake(
        "name: case", "<<<<<<< HEAD\nname: case\n=======\nname: other\n>>>>>>> b", "HW105", None, "keep one of the two sides"
    ),
    Mistake("    budget: 3", "\u00a0\u00a0\u00a0\u00a0budget: 3", "HW105", "    "),
    Mistake("environment:\n", "setup:\n  - {a}/b\nenvironment:\n", "HW105", '"{a}/b"'),
    Mistake("environment:\n", "setup: - export A=1\nenvironment:\n", "HW105", "setup:\n- export A=1"),
    Mistake("HF_HOME: /data/hf", 'HF_HOME: "\\d/hf"', "HW105", "'\\d/hf'"),
    Mistake("nodes: 4", "nodes: 4\nscheduler: {slurm: {exclude: n[1-4], qos: high}}", "HW105", '"n[1-4]"'),
    # Broken YAML: several fields or items on one line, quotes and brackets that are not closed, other languages' signs.
    Mistake("nodes: 4", "nodes: 4 seed: 2", "HW105", "nodes: 4\nseed: 2", is_whole=False),
    Mistake("nodes: 4", "nodes: 4, recompute: full", "HW105", "nodes: 4\nrecompute: full", is_whole=False),
    Mistake("nodes: 4", '"nodes: 4', "HW105", "nodes: 4"),
    Mistake("nodes: 4", "nodes: '4", "HW105", "4"),
    Mistake("nodes: 4", "// four\nnodes: 4", "HW105", "# four"),
    Mistake("nodes: 4", "-- four\nnodes: 4", "HW105", "# four"),
    Mistake("nodes: 4", "nodes: 4 // four", "HW203", "4 # four"),
    Mistake("compute: bf16", "compute: bf16 -- half", "HW205", "bf16 # half"),
    Mistake("apiVersion", "```yaml\napiVersion", "HW105", None, "remove the fence lines"),
    Mistake("name: case\n", "name: case\n...\n", "HW105", None, "remove the line with `...`"),
    Mistake("name: case\n", "name: case\n---\napiVersion: v1\n", "HW112", None, "put each document into a separate file"),
    Mistake("nodes: 4", "nodes: 4\nnodes: 4", "HW108", None, "remove this line, which is the same"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: [A, B", "HW105", "secrets: [A, B]"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: [A, B]]", "HW105", "secrets: [A, B]"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: [A, B}", "HW105", "secrets: [A, B]"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: A, B]", "HW203", "[A, B]"),
    Mistake("nodes: 4", "nodes: 4\nsecrets: <A, B>", "HW203", "[A, B]"),
    Mistake("nodes: 4", 'nodes: 4\nsecrets: ["A, B]', "HW105", '"A"'),
    Mistake("nodes: 4", "nodes: 4\nsecrets: - A", "HW105", "secrets:\n- A"),
    Mistake("nodes: 4", "nodes: 4\nsecrets:\n  * A\n  * B", "HW105", None, "write `-` before each of the 2 items"),
    Mistake("nodes: 4", "nodes: 4\nsecrets:\n  + A", "HW203", "[A]"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: *data", "HW106", '"*data"'),
    Mistake("model:\n  preset: llama-3.1-8b", "model: preset: llama-3.1-8b", "HW105", "{preset: llama-3.1-8b}"),
    Mistake("model:\n  preset: llama-3.1-8b", "model: preset: llama-3.1-8b}", "HW105", "{preset: llama-3.1-8b}"),
    Mistake("model:\n  preset: llama-3.1-8b", "model: {preset: llama-3.1-8b}}", "HW105", "model: {preset: llama-3.1-8b}"),
    Mistake("model:\n  preset: llama-3.1-8b", "model: {preset = llama-3.1-8b}", "HW201", "preset: llama-3.1-8b"),
    Mistake("  dp_shard: 16\n  tp: 2", "  dp_shard = 16\n  tp = 2", "HW203", None, "write a mapping: `{dp_shard: 16, tp: 2}`"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: 'it's'", "HW105", '"it\'s"'),
    Mistake("HF_HOME: /data/hf", 'HF_HOME: "C:\\data"', "HW105", "'C:\\data'"),
    Mistake("HF_HOME: /data/hf", "export HF_HOME=/data/hf", "HW203", "{HF_HOME: /data/hf}"),
    Mistake("HF_HOME: /data/hf", "HF_HOME /data/hf", "HW203", "{HF_HOME: /data/hf}"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: {value: /data/hf}", "HW203", None, "write `HF_HOME: /data/hf`"),
    Mistake("HF_HOME: /data/hf", "HF_HOME: [a, b]", "HW203", None, 'write one text, for example `HF_HOME: "a,b"`'),
    Mistake("HF_HOME: /data/hf", "HF_HOME: null", "HW203", None, "leave `HF_HOME` out"),
    Mistake(
        "data: {kind: files, options: {paths: [a]}}",
        "data: {kind: files, options: {paths: [*.txt]}}",
        "HW105",
        '"*.txt"',
        more=FILES,
    ),
    Mistake("apiVersion: headway", "version: headway", "HW201", "apiVersion"),
    # Numbers as words, with signs, with points or names behind them; shares of the run.
    value("nodes: 4", "four", "HW203"),
    value("nodes: 4", "-4", "HW204"),
    value("time: 7d", "one week"),
    value("time: 7d", "-7d"),
    value("time: 7d", "[7d]", hint="write `7d`"),
    value("time: 7d", "{days: 7}", hint="write `7d`"),
    value("time: 7d", "168:0:0", fix="168:00:00"),
    value("time: 7d", "0", "HW213", hint="write a number with its unit"),
    value("join: 10m", "10 minuts"),
    value("every: 100 steps", "10%"),
    value("every: 100 steps", "0.1", "HW213"),
    value("every: 100 steps", "100 stpes"),
    value("global: 256 sequences", "{sequences: 256}", hint="write `256 sequences`"),
    value("global: 256 sequences", "256 sequnces"),
    value("global: 256 sequences", "8 x 32"),
    value("global: 256 sequences", "2Mtokens", fix="2Mi tokens"),
    value("global: 256 sequences", "2M", fix="2Mi tokens"),
    value("global: 256 sequences", "0.002B tokens", fix="2Mi tokens"),
    value("sequence: 8192", "8k tokens", "HW203"),
    value("lr: 3.0e-4", "3.0 e-4", "HW203", fix="0.0003"),
    value("lr: 3.0e-4", "3.0e\u20134", "HW203", fix="0.0003"),
    value("lr: 3.0e-4", "-3.0e-4", fix="0.0003"),
    value("steps: 1000", "1.000", "HW203"),
    value("steps: 1000", "1 million", "HW203", fix="1000000"),
    value("steps: 1000", "10M", "HW203", fix="10000000"),
    value("budget: 3", "inf", "HW203", hint="no word stands for no limit"),
    Mistake("preset: llama-3.1-8b", "preset: llama-3.1-8b\n  vocab_size: 128k", "HW203", "128256"),
    Mistake(
        "global: 256 sequences\n  micro: 1\n  sequence: 8192",
        "global: 2Mi tokens\n  micro: 1\n  sequence: 8193",
        "HW316",
        "8192",
    ),
    Mistake("tp: 2", "tp: 2\n  cp: 3", "HW301", None, "`cp` can be 1"),
    # Fields of other programs.
    Mistake(
        "steps: 1000", "steps: 1000\nfsdp: full_shard auto_wrap", "HW201", None, "write `sharding: parameters` under `layout`"
    ),
    Mistake("recompute: full", "activation_checkpoint: {mode: full}", "HW201", None, "write `recompute: full`"),
    Mistake(
        "steps: 1000",
        "steps: 1000\nruntime_env: {env_vars: {A: b}}",
        "HW201",
        None,
        "add what is in its `env_vars` to `environment`",
    ),
    Mistake("environment:\n  HF_HOME: /data/hf", "runtime_env: {env_vars: {A: b}}", "HW201", None, "write `environment: {A: b}`"),
    Mistake("steps: 1000", "steps: 1000\nlabels: {team: nlp}", "HW201", None, "leave it out, or on Kubernetes"),
    Mistake("steps: 1000", "steps: 1000\nhyperparameters: {lr: 1.0e-4}", "HW201", None, "move what is in it to `optimizer`"),
    Mistake(
        "steps: 1000", "steps: 1000\ncommand: [python, train.py]", "HW201", None, "leave it out: `trainer` defines the command"
    ),
    Mistake("steps: 1000", "steps: 1000\nargs: [--x]", "HW201", None, "add its items to `argv`"),
    Mistake("steps: 1000", "steps: 1000\ncontainer: {image: a}", "HW201", None, "write `code: {image: a}`"),
    Mistake(
        "steps: 1000",
        "steps: 1000\nimagePullSecrets: [a]",
        "HW201",
        None,
        "write `image_pull_secrets` under `scheduler.kubernetes`",
    ),
    Mistake("steps: 1000", "steps: 1000\nno_such_thing: 3", "HW201", None, "leave it out: none of the"),
    Mistake("preset: llama-3.1-8b", "preset: llama-3.1-8b\n  rope_scaling: {factor: 8}", "HW201", None, "leave it out"),
    Mistake(
        "preset: llama-3.1-8b", "preset: llama-3.1-8b\n  head_type: x", "HW201", None, "leave it out, or write one of the fields"
    ),
    Mistake(
        "preset: llama-3.1-8b", "preset: llama-3.1-8b\n  num_experts: 8", "HW201", None, "write `experts: {count: 8, top_k: "
    ),
    Mistake(
        "options: {corpora: [{path: a}]}",
        "options: {corpora: [{path: a}], tokenizer: b}",
        "HW201",
        None,
        "leave it out, or write one of the fields here",
        more=BUILTIN,
    ),
    Mistake("kind: tokens", "kind: mosaic", "HW208", "tokens", more=BUILTIN),
    Mistake("kind: indexed", "kind: dataset", "HW208", "indexed", more=MEGATRON),
    # Checkpoints: the kinds of tiers, and how often each is written.
    Mistake("- kind: shared\n      every: 100 steps\n      keep: 3", "- shared", "HW203", "{kind: shared, every: 100 steps}"),
    Mistake(
        "    - kind: shared",
        "    - {kind: nvme, every: 10 steps}\n    - {kind: peer, every: 50 steps}\n    - kind: shared",
        "HW205",
        "memory",
    ),
    Mistake(
        "- kind: shared\n      every: 100 steps\n      keep: 3",
        "- {kind: memory, every: 300 steps}",
        "HW709",
        None,
        "every: 300 steps",
    ),
    Mistake(
        "      keep: 3",
        "      keep: 3\n    - {kind: remote, every: 1s, url: s3://a/b}",
        "HW707",
        None,
        "save to `remote` less often",
        more=((C, "storage:\n", "storage:\n  - {name: bucket, kind: object, url: s3://a}\n"),),
    ),
    Mistake("dp_shard: 16\n  tp: 2", "dp_shard: 2\n  tp: 16", "HW413", None, "for example `tp: 8, dp_shard: 4`"),
    Mistake(
        "nodes: 4",
        "nodes: 4\nscheduler: {slurm: {sbatch: [--reservation=x]}}",
        "HW210",
        None,
        "does not let jobs set `reservation`",
        more=((C, "account: research", "account: research\n    allow: {sbatch: any}"),),
    ),
    Mistake(
        "nodes: 4",
        "nodes: 4\nscheduler: {slurm: {apptainer: [-B /a:/b]}}",
        "HW204",
        None,
        "write `mounts: [{source: /a, target: /b}]`",
    ),
    Mistake(
        "[train.py,",
        "[train.py, '&&',",
        "HW703",
        None,
        "write what prepares a node in `setup`",
    ),
    Mistake("keep: 3\n  keep", "keep: 90\n  keep", "HW714", None, "or correct its `capacity`", more=((C, "2PB", "500GB"),)),
    Mistake(
        "every: 100 steps", "every: 1 steps", "HW715", None, "00 steps`, or correct `write`", more=((C, "200GB/s", "2GB/s"),)
    ),
    Mistake("[train.py,", '[train.py, "--id=$SLURM_JOB_ID",', "HW703", None, 'write `"--id={run}"`'),
    Mistake(
        "nodes: 4",
        "nodes: 4\nextends: bases",
        "HW114",
        None,
        "write `bases/base.yaml`",
        more=(("bases/base.yaml", "", "a: 1\n"),),
    ),
    Mistake("steps: 1000", "steps: 1000\nseed: 3\nsweep: {grid: {seed: []}}", "HW204", None, "for example `seed: [3, 4]`"),
    Mistake(
        "cluster: iron",
        "cluster: iron\ngroup: huge",
        "HW411",
        "large",
        more=(
            (
                C,
                "node_groups:\n",
                "node_groups:\n" + LARGER.replace("name: more", "name: large").replace("count: 20", "count: 4"),
            ),
            (C, "count: 8", "count: 2"),
            (J, "cluster: iron\n", "cluster: iron\n"),
        ),
    ),
]
CLUSTERS = [
    # Fields of a section next to it, and parts of a value without the rest.
    Mistake(
        "ecn: {min: 1MiB, max: 2MiB, percent: 5}",
        "min: 1MiB\n        max: 2MiB\n        percent: 5",
        "HW201",
        None,
        "write `ecn: {min: 1MiB, max: 2MiB, percent: 5}`",
    ),
    Mistake("rdma: {resource: rdma/hca}", "resource: rdma/hca", "HW201", None, "write `rdma: {resource: rdma/hca}`", more=PODS),
    Mistake(
        "versions:\n",
        "  - {name: objects, kind: object, bucket: training}\nversions:\n",
        "HW201",
        None,
        "write `url: s3://training`",
    ),
    Mistake("    congestion", "    mtu: 9000\n    congestion", "HW201", None, "headway sets the MTU of RoCE fabrics"),
    Mistake("ports: 64", "ports: 4", "HW510", None, "at least 16", more=SWITCHED),
    # One DSCP of two classes, and the transport of a fabric, have no other problem.
    Mistake(
        "lossless: true\n        ecn: {min: 1MiB, max: 2MiB, percent: 5}\n      - name: cnp\n        carries: cnp\n        dscp: 48",
        "priority: 3\n        lossless: true\n        ecn: {min: 1MiB, max: 2MiB, percent: 5}\n      - name: cnp\n"
        "        carries: cnp\n        dscp: 26",
        "HW506",
        None,
        "write `dscp: 48` there",
    ),
    Mistake("transport: roce", "transport: nvlink", "HW503", "roce"),
    Mistake(
        "  - name: admin",
        "  - {name: files, role: data, transport: roce, classes: [{name: files, carries: storage, dscp: 18, lossless: true}]}\n"
        "  - name: admin",
        "HW205",
        "storage",
    ),
    Mistake("        dscp: 26", "        tos: 104", "HW201", None, "write `dscp: 26`"),
    value("        dscp: 26", "AF31", "HW203", "26"),
    value("interface: eth0", "[eth0]", "HW203", None, "write `eth0`"),
    Mistake("account: research", "account: research\n    dependency: after_ok:1", "HW204", "afterok:1"),
    Mistake("account: research", "account: research\n    host_network: true", "HW201", None, "is an option of `kubernetes`"),
    value("transport: tcp", "ethernet", "HW205"),
    Mistake("account: research", "account: research\n    leaf_nodes: 8", "HW210", None, "`topology: tree`", is_whole=False),
    Mistake("account: research", "account: research\n    allow: {qos: all}", "HW210", "any"),
    Mistake("host_memory: 2TiB", "RealMemory: 2063937", "HW201", None, "write `host_memory: 2063937MiB`"),
    value("gpu: H100-SXM-80", "H100-SXM-80:8", "HW204", None, "write `gpu: H100-SXM-80` and `gpus: 8`"),
    value("gpu: H100-SXM-80", "H100-80GB-SXM5", "HW231"),
    value("cpus: 96", "2x48", "HW203"),
    Mistake("cpus: 96", "cpus: 96\n    hyperthreading: true", "HW201", None, "`threads_per_core`"),
    Mistake('cuda: "12.8"', "cuda: 12", "HW203", None, 'for example `cuda: "12.8"`'),
    value("account: research", "research\n    memory: 2000MiB", "HW429", hint="did you mean `2TiB`?"),
    Mistake("host_memory: 2TiB", "host_memory_tib: 2", "HW201", None, "write `host_memory: 2TiB`"),
    Mistake("nic_speed: 400Gb/s", "nic_speed_gbps: 400", "HW201", None, "write `nic_speed: 400Gb/s`"),
    key("fabrics", "fabric"),
    key("fabrics", "networks"),
    key("    gpus", "    gpus_per_node"),
    key("    gpu", "    gpu_type"),
    key("    host_memory", "    memory"),
    key("    nics", "    hcas"),
    key("    cpus", "    cores"),
    key("    count", "    replicas"),
    key("    role", "    purpose"),
    key("    transport", "    protocol"),
    key("    partition", "    queue"),
    key("  node_mtbf", "  mtbf"),
    key("  torch", "  pytorch"),
    key("    shared", "    is_shared"),
    key("        lossless", "        pfc"),
    moved("  kind: slurm\n", "  kind: slurm\n  partition: main\n", "`partition` belongs under `options`"),
    moved("name: admin", "name: admin\n    vlan: 100", "leave it out"),
    value("host_memory: 2TiB", "2T", fix="2TiB", hint="`2TiB` (powers of 1024) or `2TB` (powers of 1000)"),
    value("host_memory: 2TiB", "2tib"),
    value("host_memory: 2TiB", "2048Gi", fix="2048GiB"),
    value("host_memory: 2TiB", "2199023255552", "HW213"),
    value("nic_speed: 400Gb/s", "400G"),
    value("nic_speed: 400Gb/s", "400Gbps"),
    value("nic_speed: 400Gb/s", "400GbE"),
    value("nic_speed: 400Gb/s", "NDR"),
    value("nic_speed: 400Gb/s", "400", "HW213"),
    value("nic_speed: 400Gb/s", "400GB/s", hint="`B` is a byte: write `400Gb/s`"),
    value("write: 200GB/s", "200GBps"),
    value("write: 200GB/s", "200G"),
    value("write: 200GB/s", "1600Gbps"),
    value("node_mtbf: 300d", "300 days"),
    value('cuda: "12.8"', "12.8", "HW203"),
    value("torch: 2.8.0", "v2.8.0+cu128"),
    Mistake("kind: slurm", "kind: k8s", "HW208", "kubernetes", is_whole=False),
    value("transport: roce", "rocev2", "HW205"),
    Mistake("transport: roce", "transport: ethernet", "HW205", "roce", "write `roce`"),
    Mistake("nic: ConnectX-7", "nic: CX7", "HW231", "ConnectX-7"),
    Mistake("nics: [mlx5_0,", "nics: ['mlx5_0:1',", "HW204", "mlx5_0"),
    Mistake("interface: eth0", "interface: 'eth0:1'", "HW204", "eth0"),
    Mistake("partition: main", "partition: [main, debug]", "HW203", None, "main,debug"),
    Mistake("account: research", "account: research\n    memory: 3TiB", "HW232", None, "set less than that"),
    Mistake("account: research", "account: research\n    allow: {sbatch: [--switches]}", "HW204", "switches"),
    Mistake("account: research", "account: research\n    requeue: true", "HW201", None, "always requeued"),
    Mistake(
        "account: research", "account: research\n    login: {host: 'a@b.c:22'}", "HW204", None, "host: b.c, port: 22, user: a"
    ),
    value("partition: main", "main, long", fix='"main,long"'),
    value("gpu: H100-SXM-80", "H100", "HW231", hint="of this chip the catalogue has `H100-SXM-80`"),
    Mistake("account: research", "account: research\n    bundle: headway/a", "HW204", None, "the whole path from `/` on"),
    Mistake("account: research", "account: research\n    login: a@b.c", "HW203", "{host: b.c, user: a}"),
    Mistake("dscp: 48", "dscp: 26", "HW506", None, "`dscp: 48` there"),
    value("role: scale-out", "compute", "HW205"),
    # Earlier names of headway's own.
    key("node_groups", "nodes"),
    key("- name", "- group"),
    key("    held_back", "    spares"),
    value("role: scale-out", "scale_out", "HW205"),
    value("congestion: pfc-ecn", "pfc+ecn", "HW205"),
    value("role: management", "mgmt", "HW205"),
    value("congestion: pfc-ecn", "dcqcn", "HW205"),
    value("kind: posix", "nfs", "HW205"),
    value("shared: true", '"yes"', "HW203"),
    value("gpu: H100-SXM-80", "H100-SMX-80", "HW231"),
    Mistake("name: admin", "name: rails", "HW209", None, "give each a unique name"),
    Mistake("congestion:", "rails: 4\n    congestion:", "HW515", "8"),
    Mistake("dscp: 48", "dscp: 24", "HW506", None, "for example 48"),
    Mistake("nics: [mlx5_0,", "nics: [{name: mlx5_0, fabric: rials},", "HW236", "rails"),
    Mistake("nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]", "nics: mlx5_0", "HW203", "[mlx5_0]"),
    Mistake("interface: eth0", "interfaces: eth0", "HW201", "interface"),
    Mistake("kind: Cluster", "kind: cluster", "HW207", "Cluster"),
    Mistake("kind: Cluster", "Kind: Cluster", "HW201", "kind"),
    value("cpus: 96", "96000m", "HW203"),
    value("host_memory: 2TiB", "2048", "HW213", hint="`2048GiB`"),
    value("nic_speed: 400Gb/s", "8x400Gb/s", "HW204"),
    value("write: 200GB/s", "12000GB/min", "HW204"),
    value("host_memory: 2TiB", "2048000", "HW213", hint="`2048000MiB`"),
    Mistake("account: research", "account: research\n    directives: [--gres=gpu:8]", "HW210", None, "leave it out"),
    Mistake("mlx5_7]", "eth0]", "HW530", None, "for example `mlx5_7`"),
    Mistake("path: /scratch/runs", "url: s3://a/b", "HW210", None, "write `path`", is_whole=False),
    Mistake("path: /scratch/runs", "path: /scratch/$USER/runs", "HW703", None, "`/scratch/{user}/runs`"),
    Mistake("path: /scratch/runs", "path: '/scratch/{username}/runs'", "HW703", None, "write `{user}`", is_whole=False),
    Mistake("path: /scratch/runs", "path: 'C:\\runs'", "HW703", None, "for example `path: /scratch/runs`"),
    Mistake(
        "account: research", "account: research\n    image_cache: /local/images", "HW210", None, "or leave `image_cache` out"
    ),
    Mistake("account: research", "account: research\n    topology: block", "HW210", None, "leave it out"),
    Mistake("mlx5_1, mlx5_2", "mlx5_1 mlx5_2", "HW204", None, "write `mlx5_1, mlx5_2`"),
    Mistake("ecn: {min: 1MiB, max", "ecn: {min: 1MiB max", "HW105", "{min: 1MiB, max: 2MiB, percent: 5}"),
    Mistake("carries: collectives", "carries: storage", "HW503", "collectives"),
    Mistake("account: research", "account: <your-account>", "HW703", None, "write the value itself"),
    Mistake("    gpus: 8", "    gres: gpu:8", "HW201", None, "write `gpus: 8`"),
    Mistake(
        "nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]",
        "nics: mlx5_[0-7]",
        "HW203",
        "[mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]",
    ),
    Mistake(
        "ecn: {min: 1MiB, max: 2MiB, percent: 5}",
        "ecn_min: 1MiB\n        ecn_max: 2MiB",
        "HW201",
        None,
        "`ecn: {min: 1MiB, max: 2MiB, percent: 5}`",
    ),
    Mistake("host_memory: 2TiB", "RealMemory: 2TiB", "HW201", None, "write `host_memory: 2TiB`"),
    Mistake("role: scale-out", "role: scale-up", "HW503", "scale-out"),
    # A cluster by itself.
    Mistake("  - name: admin", f"{SECOND}  - name: admin", "HW519", "storage"),
    Mistake("interface: eth0", "interface: lo", "HW505", None, "for example `interface: eth0`"),
    Mistake("    capacity: 2PB", "    capacity: 2PB\n  - name: o\n    kind: object\n    path: s3://a/b", "HW210", "url"),
    Mistake("shared: true", "shared: true\n    hard_links: false", "HW712", None, "add a shared file system that has them"),
    Mistake("mlx5_6, mlx5_7]", "mlx5_6, mlx5_6]", "HW209", "mlx5_7"),
    Mistake(
        "    nics: [mlx5_0",
        "    hosts: ['10.0.0.[1-8]']\n    nics: [mlx5_0",
        "HW204",
        None,
        "write each host: `10.0.0.1, 10.0.0.2",
    ),
    Mistake("account: research", "account: research\n    bundle: ~/headway", "HW204", None, "`~` and `$` are not expanded"),
    Mistake("gpu: H100-SXM-80", "gpu: 8x H100-SXM-80", "HW204", None, "write `gpu: H100-SXM-80` and `gpus: 8`"),
    Mistake("nic: ConnectX-7", "nic: ConnectX-6-Dx", "HW232", None, "for example `nic: ConnectX-7`", more=SWITCHED),
    Mistake("    capacity: 2PB", "    capacity: everything", "HW204", None, "leave it out, or write a number with its unit"),
    Mistake("account: research", "account: research\n    srun: [--export=ALL]", "HW210", None, "set variables in `environment`"),
    Mistake(
        "account: research", "account: research\n    directives: [-N 4]", "HW204", None, "`nodes` of the job is their number"
    ),
    Mistake("account: research", f"{APPTAINER}[--env-file=a]", "HW210", None, "use `environment` or `secrets` of the job"),
    Mistake("account: research", f"{APPTAINER}[--env=A=b]", "HW210", None, "use `environment` or `secrets` of the job"),
    Mistake("account: research", f"{APPTAINER}[--net]", "HW210", None, "leave it out"),
    Mistake("count: 8", "count: 100000", "HW204", None, "describe some of them as a separate cluster", more=GROUPS),
    Mistake("  - name: gpu\n", "  - name: gpu\n    smt: true\n", "HW201", None, "headway calls it `threads_per_core`"),
    # Its pods.
    Mistake(
        "resource: rdma/hca", "resource: nvidia.com/gpu", "HW210", None, "for example `rdma/hca_shared_devices_a`", more=PODS
    ),
    Mistake("{resource: rdma/hca}", "{rdma/hca: 1}", "HW201", None, "write `{resource: rdma/hca}`", False, PODS),
    Mistake("{resource: rdma/hca}", "rdma/hca", "HW203", "{resource: rdma/hca}", more=PODS),
    Mistake("image: registry", "image: docker://registry", "HW204", f"registry.example.com/a@sha256:{'4f' * 32}", more=PODS),
    Mistake("path: /scratch/runs", "path: /scratch/{user}/runs", "HW406", None, "write the path out", more=PODS),
    Mistake("path: /scratch/runs", "path: /data/runs", "HW406", None, "for example `path: /scratch/runs`", more=PODS),
    Mistake("host_network: true", "host_network: true\n    user: root", "HW203", "0", more=PODS),
    Mistake("host_network: true", "host_network: true\n    memory: 1024", "HW203", None, "write `1024Gi` or `1024Mi`", more=PODS),
    Mistake("host_network: true", "host_network: true\n    restricted: true", "HW210", None, "leave them out", more=PODS),
    Mistake(
        "host_network: true",
        "host_network: true\n    pod: {nodeselector: {a: b}}",
        "HW210",
        None,
        "set `node_selector: {a: b}`",
        more=PODS,
    ),
    Mistake("host_network: true", "host_network: true\n    pod: {hostaliases: []}", "HW210", "hostAliases", more=PODS),
    Mistake(
        "host_network: true",
        "host_network: true\n    pod: {volumes: {name: a}}",
        "HW210",
        None,
        "`volumes: [{name: ...}]`",
        more=PODS,
    ),
    Mistake(
        "host_network: true",
        "host_network: true\n    labels: {app.kubernetes.io/managed-by: a}",
        "HW210",
        None,
        "use another key",
        more=PODS,
    ),
    Mistake(
        "host_network: true",
        "host_network: true\n    volumes: [{name: a, emptyDir: {}}]",
        "HW201",
        None,
        "write it as in `mounts: [{path: /scratch, claim: scratch}]`",
        more=PODS,
    ),
    Mistake(STORAGE, "", "HW702", None, "add it to `storage`, for example"),
    # Its switches.
    Mistake("leaves: 8", "leaves: 9", "HW510", None, "the nodes need 8: one for each of the 8 rails", more=SWITCHED),
    Mistake("leaves: 8", "lanes: 3, leaves: 8", "HW526", None, "use 1, 2, 4 or 8", more=SWITCHED),
    Mistake("leaves: 8", "lanes: 1, leaves: 8", "HW526", None, "use 2 or more, or leave `lanes` out", more=SWITCHED),
    Mistake("leaves: 8", "speed: 333Gb/s, leaves: 8", "HW526", None, "for example 400Gb/s", more=SWITCHED),
    Mistake(
        "leaves: 8", "model: SN5601x, leaves: 8", "HW231", None, "describe it: `speed`, `uplink_speed`, `lanes`", more=SWITCHED
    ),
    Mistake(
        "leaves: 8",
        "addresses: 10.0.0.0/16, loopbacks: 10.0.0.0/16, leaves: 8",
        "HW511",
        None,
        "set for example `addresses: 10.10.0.0/16`",
        more=SWITCHED,
    ),
    Mistake(
        "nic: ConnectX-7",
        "nic: ConnectX-6-Dx",
        "HW518",
        None,
        "set `speed: 200Gb/s` of the switches",
        more=(
            *SWITCHED,
            (C, "nic: ConnectX-7\n    nic_speed: 400Gb/s", "nic: ConnectX-7"),
            (C, "leaves: 8", "speed: 400Gb/s, leaves: 8"),
        ),
    ),
    Mistake(
        "nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]",
        "nics: []",
        "HW502",
        None,
        "nics: [",
        more=SWITCHED,
    ),
    Mistake(
        "model: SN3700",
        "model: SN3700, uplink_speed: 800Gb/s",
        "HW526",
        None,
        "use 200Gb/s or less",
        more=(
            *SWITCHED,
            (C, "nic_speed: 400Gb/s", "nic_speed: 200Gb/s"),
            (C, "leaves: 8, spines: 4, ports: 64", "model: SN3700, speed: 200Gb/s, leaves: 8, spines: 4, ports: 32"),
        ),
    ),
    Mistake(
        "mlx5_7]",
        f"mlx5_7]\n    hosts: [{', '.join(f'100.64.0.{number}' for number in range(1, 9))}]",
        "HW511",
        None,
        "set `addresses: 10.128.0.0/12`",
        more=(*SWITCHED, (C, "leaves: 8", "addresses: 100.64.0.0/12, leaves: 8")),
    ),
    Mistake("leaves: 8", "asn: 4200000000, leaves: 8", "HW504", None, "leave it out", more=INFINIBAND),
    Mistake("leaves: 8", "model: SN5600, leaves: 8", "HW526", None, "use `QM9700` or `Q3400`", more=INFINIBAND),
    Mistake(
        "transport: infiniband\n    switches: {",
        "transport: roce\n    service_level: 1\n    switches: {model: QM9700, ",
        "HW504",
        None,
        "set `transport: infiniband`, or leave it out",
        more=INFINIBAND,
    ),
    Mistake("leaves: 8", "addresses: 999.0.0.0/16, leaves: 8", "HW511", None, "for example `10.10.0.0/16`", more=SWITCHED),
    Mistake(
        "{kind: frr}", "{kind: sonic, options: {keep_ports: [swp3]}}", "HW204", None, "is a port of Cumulus Linux", more=SWITCHED
    ),
    Mistake(
        "{kind: frr}", "{kind: frr, options: {base: a}}", "HW201", None, "an option of `eos`, `nvue` or `sonic`", more=SWITCHED
    ),
    # Names with decorations: of nvidia-smi, rocm-smi and clouds, of vendors; ranges.
    *[
        Mistake("gpu: H100-SXM-80", f"gpu: {name}", code, "H100-SXM-80")
        for name, code in (
            ("NVIDIA H100 80GB HBM3", "HW204"),
            ("p5.48xlarge", "HW231"),
            ("a3-megagpu-8g", "HW231"),
            ("Standard_ND96isr_H100_v5", "HW231"),
            ("BM.GPU.H100.8", "HW231"),
        )
    ],
    Mistake("gpu: H100-SXM-80", "gpu: AMD Instinct MI300X OAM", "HW204", "MI300X-192", is_whole=False),
    Mistake("nic: ConnectX-7", "nic: NVIDIA ConnectX-7 400GbE", "HW231", "ConnectX-7"),
    Mistake("leaves: 8", "model: NVIDIA SN5600, leaves: 8", "HW231", "SN5600", more=SWITCHED),
    Mistake("leaves: 8", "model: sn5600, leaves: 8", "HW231", "SN5600", more=SWITCHED),
    Mistake("leaves: 8", "asn: 64512-65534, leaves: 8", "HW203", "64512", more=SWITCHED),
    Mistake("ports: 64", "ports: 64 x 400G", "HW203", "64", more=SWITCHED),
    *[
        Mistake(ADAPTERS.partition(", nic:")[0], f"nics: {written}", code, fix)
        for written, code, fix in (
            ("[mlx5_0-7]", "HW204", ", ".join(f"mlx5_{number}" for number in range(8))),
            ("mlx5_{0..7}", "HW203", f"[{', '.join(f'mlx5_{number}' for number in range(8))}]"),
            ("mlx5_0..mlx5_7", "HW203", f"[{', '.join(f'mlx5_{number}' for number in range(8))}]"),
            ("mlx5_0 mlx5_1", "HW203", "[mlx5_0, mlx5_1]"),
        )
    ],
    Mistake(ADAPTERS.partition(", nic:")[0], "nics: [0, 1]", "HW203", None, "write `[mlx5_0, mlx5_1]`"),
    Mistake(ADAPTERS.partition(", nic:")[0], "nics: [mlx5_*]", "HW204", None, "patterns are not expanded"),
    Mistake("gpus: 8", "gpus: 0-7", "HW203", "8"),
    Mistake("count: 8", "count: gpu[1-8]", "HW203", "8"),
    Mistake("dscp: 26", "dscp: 26 (AF31)", "HW203", "26"),
    Mistake('cuda: "12.8"', "cuda: cu128", "HW204", '"12.8"'),
    Mistake('cuda: "12.8"', "cuda: 128", "HW203", '"12.8"'),
    Mistake("partition: main", "partition: --partition=main", "HW204", "main"),
    Mistake("partition: main", "partition: main*", "HW204", "main"),
    Mistake("nic_speed: 400Gb/s", "nic_speed: 0", "HW213", None, "write a number with its unit"),
    Mistake("interface: eth0", "interface: 192.168.1.1", "HW505", None, "write the name that `ip -br address` prints"),
    Mistake("path: /scratch/runs", "path: nfs:/scratch/runs", "HW703", None, "for example `path: /scratch/runs`"),
    Mistake("name: iron", "name: Iron", "HW204", "iron"),
    # Networks: the role and the transport that their settings show, planes, congestion.
    Mistake("transport: roce", "transport: tcp", "HW530", None, "set `transport: roce` of `rails`"),
    Mistake("congestion: pfc-ecn", "congestion: ecn-lossy", "HW516", None, "which the classes are for"),
    Mistake("congestion: pfc-ecn", "congestion: ecn", "HW205", "pfc-ecn"),
    Mistake("    congestion", "    planes: 3\n    congestion", "HW525", None, "use 1, 2, 4 or 8"),
    Mistake("role: management", "role: scale-out", "HW519", "management"),
    Mistake("leaves: 8, spines: 4", "tiers: 2, cores: 4", "HW510", None, "leave `cores` out, or write `tiers: 3`", more=SWITCHED),
    # Lists and mappings of options.
    Mistake("account: research", "account: research\n    allow: [partition, qos]", "HW203", None, "`{partition: any, qos: any}`"),
    Mistake(
        "account: research",
        "account: research\n    node_names: [n1, n2, n3, n4, n5, n6, n7, n8]",
        "HW203",
        None,
        '`{gpu: "n[1-8]"}`',
    ),
    Mistake(
        "account: research",
        'account: research\n    setup: "export A=b\\nulimit -l unlimited"',
        "HW203",
        "[export A=b, ulimit -l unlimited]",
    ),
    Mistake(
        "host_network: true",
        "host_network: true\n    resources: {limits: {memory: 1536Gi}}",
        "HW201",
        None,
        "write `memory: 1536Gi`",
        more=PODS,
    ),
    Mistake("host_network: true", "host_network: true\n    memory: 1.5T", "HW204", "1500G", more=PODS),
    Mistake("host_network: true", "host_network: true\n    node_selector: gpu=true", "HW203", '{gpu: "true"}', more=PODS),
    Mistake("{path: /scratch, claim: scratch}", "scratch:/scratch", "HW203", "{path: /scratch, claim: scratch}", more=PODS),
    Mistake("rdma: {resource: rdma/hca}", "rdma: [rdma/hca]", "HW203", None, "write `{resource: rdma/hca}`", more=PODS),
    # Names of groups, and of what belongs to them.
    Mistake(
        "name: large",
        "name: gpu",
        "HW209",
        "large",
        more=(
            (C, "fabrics:\n", "  - {name: large, count: 2, cpus: 96, host_memory: 2TiB}\nfabrics:\n"),
            (C, "storage:\n", "storage:\n  - {name: tmp, kind: posix, path: /local, groups: [large]}\n"),
        ),
    ),
]
INVENTORIES = [
    Mistake("- name: rails-leaf-1", "- name: leaf-1", "HW520", "rails-leaf-1", more=OBSERVED),
    Mistake("gpu-1", "gpu-01", "HW520", "gpu-1", more=OBSERVED),
    Mistake("gpu-2", "gpu-9", "HW520", None, "raise `count` in the document of `iron`", more=OBSERVED),
    Mistake("gpu-2", "h100-2", "HW520", "gpu-2", more=OBSERVED),
    Mistake("gpu-2", "gpu-1", "HW521", None, "write `gpu-2`, which has no entry", more=OBSERVED),
    Mistake("serial: A2", "serial: A1", "HW521", None, "correct one of the two entries", more=OBSERVED),
    Mistake("serial: A2", "serial: A2\n    rack: 3", "HW201", None, "leave it out", more=OBSERVED),
    Mistake("  - name: gpu-2", "  - hostname: gpu-2", "HW201", "name", more=OBSERVED),
    Mistake("serial: B1", "guid: '0x0002c903000e0b72'", "HW504", None, "leave it out", more=OBSERVED),
    Mistake(
        "serial: B1", "serial: B1\n  - {name: rails-leaf-1, serial: B2}", "HW521", None, "write `rails-leaf-2`", more=OBSERVED
    ),
    Mistake("- name: rails-leaf-1", "- name: rail-leaf-1", "HW520", "rails-leaf-1", more=OBSERVED),
    Mistake("switch: rails-leaf-2", "switch: rails-leaf-9", "HW520", "rails-leaf-2", more=OBSERVED),
    Mistake("switch: rails-leaf-2", "switch: rails-leaf-1", "HW522", None, "for example `rails-leaf-2`", more=OBSERVED),
    Mistake("switch: rails-leaf-2, port", "switch: rails-leaf-2, interface", "HW201", "port", more=OBSERVED),
    Mistake("mlx5_1", "mlx_1", "HW520", "mlx5_1", more=OBSERVED),
    Mistake("port: Ethernet0}]", "port: Ethernet8}]", "HW523", None, "its port would be `Ethernet0`", more=OBSERVED),
    Mistake("cluster: iron", "cluster: iorn", "HW401", "iron", more=OBSERVED),
    Mistake(
        "gpu-2",
        "gpu-9",
        "HW520",
        "gpu-2",
        more=(*OBSERVED, (INVENTORY, "switches:", "".join(f"  - name: gpu-{number}\n" for number in range(3, 9)) + "switches:")),
    ),
]
BASES = [Mistake("kind: TrainingJob", "kind: Cluster", "HW114", "TrainingJob", more=EXTENDED)]
# Valid variants that look like one of the mistakes: part of the document, and its replacement.
RIGHT = [
    ("job.yaml", "  tp: 2\n", "  tp: 2\n  sequence_parallel: true\n"),
    # The cluster's own interface and adapters, as a batch script exports them.
    ("job.yaml", "HF_HOME: /data/hf", "NCCL_SOCKET_IFNAME: eth0"),
    ("job.yaml", "steps: 1000", "steps: 1000\nsetup: ['export A=\"two', 'lines\"', 'cat > notes <<EOF', \"it's\", EOF]"),
    (
        "job.yaml",
        "steps: 1000",
        "steps: 1000\nsetup: ['case $A in', 'b) for c in d; do if true; then echo \"do\"; fi; done ;; esac # if', 'test a = b || D=e env']",
    ),
    # A here-document or a quoted text is not parsed as shell, and an item may have several lines.
    ("job.yaml", "steps: 1000", "steps: 1000\nsetup: ['cat > ib.conf <<EOF', 'timeout = 22', '[[ x', EOF]"),
    ("job.yaml", "steps: 1000", 'steps: 1000\nsetup: ["A=\'\\nb = c\\n[[ if\'", "if true\\nthen B=1\\nfi"]'),
    ("job.yaml", "HF_HOME: /data/hf", "PYTORCH_ALLOC_CONF: 'roundup_power2_divisions:[64:8,>:1],expandable_segments:True'"),
    ("job.yaml", "HF_HOME: /data/hf", "NCCL_DEBUG_SUBSYS: '^init,Net'"),
    ("job.yaml", "HF_HOME: /data/hf", "NCCL_ALGO: allreduce:ring,nvls"),
    ("job.yaml", "HF_HOME: /data/hf", "NCCL_IB_HCA: mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "iron.yaml").write_text(CLUSTER)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    main(["check", "--format", "json", "job.yaml"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["problems"]
    return found


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def test_unmodified_documents_are_valid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(capsys) == []


@pytest.mark.parametrize(("file", "old", "new"), RIGHT)
def test_valid_variant_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert problems(capsys) == []


MISTAKES = [
    (file, each)
    for file, several in ((J, JOBS), (C, CLUSTERS), (INVENTORY, INVENTORIES), ("base.yaml", BASES))
    for each in several
]


@pytest.mark.parametrize(("file", "mistake"), slow_after_first(MISTAKES, lambda row: [(row[0], row[1].code)]), ids=str)
def test_one_mistake_gives_one_problem_with_its_fix(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, mistake: Mistake
) -> None:
    for name, before, after in mistake.more:
        other = folder / name
        other.parent.mkdir(exist_ok=True)
        other.write_text(changed(other.read_text(), before, after) if before else after)
    if mistake.more:
        assert problems(capsys) == []
    path = folder / file
    text = path.read_text()
    assert text.count(mistake.old) >= 1
    wrong = text.replace(mistake.old, mistake.new, 1)
    path.write_text(wrong)
    (problem,) = problems(capsys)
    assert (problem["code"], problem["file"]) == (mistake.code, file)
    assert problem["fix"] == mistake.fix
    assert mistake.hint in problem["hint"]
    written = re.fullmatch("write `([^`]*)`", problem["hint"])
    if mistake.fix is None and mistake.is_whole and written is not None:
        # The value, or the field with it.
        field = mistake.new.rpartition("\n")[2].partition(": ")[0]
        mend = written[1] if re.match(r"[\w.]+: ", written[1]) else f"{field}: {written[1]}"
        if field == mistake.new.partition(": ")[0]:
            path.write_text(text.replace(mistake.old, " " * (len(mistake.new) - len(mistake.new.lstrip(" "))) + mend.strip(), 1))
            assert problems(capsys) == []
    if mistake.fix is not None and mistake.is_whole:
        path.write_text(fixed(wrong, problem))
        assert problems(capsys) == []
