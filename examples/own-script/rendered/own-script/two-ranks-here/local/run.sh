#!/bin/bash
# own-script on two-ranks-here. Rendered by headway; edit the spec, not this file. Its data are below `main`.
set -euo pipefail

main() {
  runs=${HEADWAY_RUNS:-runs}
  export HEADWAY_NODES=127.0.0.1
  run_json=$(open_run "$runs" own-script-537527c2-"$(date +%Y%m%dT%H%M%S.%N)" --attempt 0)

  runners=()
  signalled=
  # Every runner gets the signal: a terminal's does not reach what a script starts in the background.
  trap 'signalled=1; kill -TERM "${runners[@]}" 2>/dev/null || true' INT TERM
  for ((node = 0; node < 1; node++)); do
    python3 -m headway.runner "$run_json" --attempt 0 --node "$node" &
    runners+=("$!")
    # The signal may have come between the start of this runner and its entry in the list.
    if [[ -n $signalled ]]; then kill -TERM "$!" 2>/dev/null || true; fi
  done

  worst=0
  for runner in "${runners[@]}"; do
    status=0
    wait "$runner" || status=$?
    # A trapped signal ends `wait` early. The next one returns the runner's exit code, or 127 if the first has returned it.
    while [[ -n $signalled ]]; do
      signalled=
      again=0
      wait "$runner" 2>/dev/null || again=$?
      if ((again != 127)); then status=$again; fi
    done
    if ((status > worst)); then worst=$status; fi
  done
  # The verdict file wins over the exit code.
  exit "$(python3 -m headway.runner.rundir exit-code "$run_json" --or "$worst")"
}

# The environment of every rank: each variable below its reason, and the source that defines it.

# a node's cores (2) over its ranks (2); another number changes how CPU sums are rounded
#   docs.pytorch.org threading_environment_variables
export OMP_NUM_THREADS=1
# a killed rank's last lines reach its log
#   docs.python.org using/cmdline.html
export PYTHONUNBUFFERED=1

# Opens an attempt with all that the runner gets (RUN_JSON), and keeps the spec: these values, and what they omit from RUN_JSON.
open_run() {
  python3 -m headway.runner.rundir open "$@" --spec /dev/fd/3 <<'RUN_JSON' 3<<'SPEC_JSON'
{
  "backend": "gloo",
  "batch": {"global_sequences": 64, "micro_sequences": 16, "sequence_length": 1},
  "checkpoint": {
    "horizon_steps": 0,
    "host_memory_bytes": null,
    "tiers": [{"every_s": null, "every_steps": 10, "keep": 3, "kind": "shared", "url": null}]
  },
  "cluster": "two-ranks-here",
  "corruption": null,
  "data": null,
  "domains": [],
  "grace_s": 30.0,
  "history": [],
  "limits": {"gpu_hours": null, "time_s": null},
  "mesh": {"cp": 1, "dp_replicate": 1, "dp_shard": 2, "pp": 1, "tp": 1},
  "metrics_port": null,
  "min_slots": null,
  "model": null,
  "notify": null,
  "optimizer": {
    "beta1": 0.9,
    "beta2": 0.95,
    "clip_norm": 1.0,
    "decay_steps": null,
    "eps": 1e-08,
    "lr": 0.01,
    "min_lr_ratio": 0.1,
    "schedule": "cosine",
    "warmup_steps": 0,
    "weight_decay": 0.1
  },
  "partner_segment": 1,
  "peak_tflops": null,
  "peer_dscp": null,
  "ports": {"coordinator": 0, "store": 0},
  "procs_per_slot": 2,
  "replica_recovery": false,
  "restart": {"budget": 3, "no_progress": 3, "refill_steps": 100},
  "run": null,
  "schema": "headway.run/1",
  "seed": 1,
  "segment_required": false,
  "segment_slots": 1,
  "slots": 1,
  "spares": 0,
  "spec_hash": "537527c202c3e4d6a2efd7a39c8300eb46d1f1fbf978532d241148c4780fe8b6",
  "steps": 60,
  "store": {"kind": "posix", "url": null},
  "timeouts": {
    "agent": {"factor": 1.0, "floor_s": 30.0},
    "busy": {"factor": 1.0, "floor_s": 86400.0},
    "checkpoint": {"factor": 10.0, "floor_s": 1800.0},
    "collective": {"factor": 1.0, "floor_s": 600.0},
    "compile": {"factor": 10.0, "floor_s": 3600.0},
    "compute": {"factor": 10.0, "floor_s": 900.0},
    "data": {"factor": 10.0, "floor_s": 900.0},
    "evaluation": {"factor": 10.0, "floor_s": 3600.0},
    "join": {"factor": 1.0, "floor_s": 600.0},
    "kill": {"factor": 1.0, "floor_s": 60.0},
    "last_call": {"factor": 1.0, "floor_s": 30.0},
    "listen": {"factor": 1.0, "floor_s": 60.0},
    "node": {"factor": 1.0, "floor_s": 10.0},
    "node_spare": {"factor": 1.0, "floor_s": 3.0},
    "replace": {"factor": 1.0, "floor_s": 0.0},
    "replica": {"factor": 1.0, "floor_s": 300.0},
    "start": {"factor": 1.0, "floor_s": 1800.0},
    "store": {"factor": 1.0, "floor_s": 600.0},
    "terminate": {"factor": 1.0, "floor_s": 30.0},
    "verify": {"factor": 1.0, "floor_s": 300.0}
  },
  "trainer": {
    "kind": "script",
    "options": {
      "argv": [
        "examples/own-script/train.py",
        "--seed=1",
        "--steps=60",
        "--dp-replicate=1",
        "--dp-shard=2",
        "--global-batch=64",
        "--micro-batch=16",
        "--lr=0.01",
        "--save-every=10",
        "--checkpoints=runs"
      ],
      "logs": true
    }
  }
}
RUN_JSON
{
  "apiVersion": "headway/v1alpha1",
  "batch": {"global": {"tokens": null}},
  "checkpoint": {"horizon": null, "keep": 3, "tiers": [{"keep": null}]},
  "cluster": ["two-ranks-here"],
  "code": {"commit": "HEAD", "image": null},
  "compile": null,
  "data": null,
  "environment": {},
  "gpus": null,
  "group": null,
  "history": [],
  "kind": "TrainingJob",
  "layout": {"dp_shard": null, "ep": 1, "schedule": null, "sequence_parallel": null, "sharding": null, "virtual_stages": 1},
  "limits": {"attempt": {"gpu_hours": null, "time": null}, "run": {"gpu_hours": null, "time": null}},
  "min_nodes": null,
  "model": null,
  "mounts": [],
  "name": "own-script",
  "overlap": {"experts": null, "gradients": null, "parameters": null, "pipeline": null, "tensor": null},
  "precision": {"compute": null, "parameters": null, "reduce": null},
  "recompute": null,
  "resilience": {"corruption": null, "notify": null, "replica_recovery": false},
  "scheduler": null,
  "secrets": [],
  "setup": [],
  "sweep": null,
  "trainer": {
    "options": {
      "argv": [
        "examples/own-script/train.py",
        "--seed={seed}",
        "--steps={steps}",
        "--dp-replicate={layout.dp_replicate}",
        "--dp-shard={layout.dp_shard}",
        "--global-batch={batch.global}",
        "--micro-batch={batch.micro}",
        "--lr={optimizer.lr}",
        "--save-every={checkpoint.shared.steps}",
        "--checkpoints={runs}"
      ]
    }
  }
}
SPEC_JSON
}

main
