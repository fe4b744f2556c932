#!/bin/bash
# quickstart on this-machine: 1 x 2 ranks on this machine.
# Rendered by headway from spec ea4c4cd4d538679242abda39ee1c1cfdf2ba6342e30be5ef5614265a03d7cf1d; edit the spec, not this file.
set -euo pipefail

# a node's cores (2) over its ranks (2); another number changes how CPU sums are rounded
#   docs.pytorch.org threading_environment_variables
export OMP_NUM_THREADS=1
# a killed rank's last lines reach its log
#   docs.python.org using/cmdline.html
export PYTHONUNBUFFERED=1

runs=${HEADWAY_RUNS:-runs}
export HEADWAY_NODES=127.0.0.1
run_json=$(
  python3 -m headway.runner.rundir open "$runs" quickstart-ea4c4cd4-"$(date +%Y%m%dT%H%M%S.%N)" --attempt 0 <<'RUN_JSON'
{
  "backend": "gloo",
  "batch": {"global_sequences": 16, "micro_sequences": 8, "sequence_length": 256},
  "checkpoint": {"keep": 3, "tiers": [{"every_steps": 20, "kind": "disk"}]},
  "data": {"kind": "python_stdlib", "options": {"limit_bytes": 8000000}},
  "grace_s": 30.0,
  "mesh": {"cp": 1, "dp_replicate": 1, "dp_shard": 2, "pp": 1, "tp": 1},
  "model": {
    "dropout": 0.1,
    "ffn_hidden": 352,
    "heads": 4,
    "hidden": 128,
    "kv_heads": 2,
    "layers": 4,
    "norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_embeddings": false,
    "vocab_size": 256
  },
  "optimizer": {
    "beta1": 0.9,
    "beta2": 0.95,
    "clip_norm": 1.0,
    "eps": 1e-08,
    "lr": 0.003,
    "min_lr_ratio": 0.1,
    "warmup_steps": 20,
    "weight_decay": 0.1
  },
  "ports": {"coordinator": 0},
  "procs_per_slot": 2,
  "restart": {"budget": 3, "no_progress": 3, "refill_steps": 100},
  "run": null,
  "schema": "headway.run/1",
  "seed": 1,
  "slots": 1,
  "spec_hash": "ea4c4cd4d538679242abda39ee1c1cfdf2ba6342e30be5ef5614265a03d7cf1d",
  "steps": 160,
  "store": {"kind": "posix", "url": null},
  "timeouts": {
    "agent": {"factor": 1.0, "floor_s": 30.0},
    "collective": {"factor": 1.0, "floor_s": 600.0},
    "join": {"factor": 1.0, "floor_s": 600.0}
  },
  "trainer": {"kind": "builtin", "options": {}}
}
RUN_JSON
)

runners=()
# Every runner gets the signal: a terminal's does not reach what a script starts in the background.
trap 'kill -TERM "${runners[@]}" 2>/dev/null || true' INT TERM
for ((node = 0; node < 1; node++)); do
  python3 -m headway.runner "$run_json" --attempt 0 --node "$node" &
  runners+=("$!")
done

worst=0
for runner in "${runners[@]}"; do
  status=0
  wait "$runner" || status=$?
  # A trapped signal ends `wait` before the runner has ended.
  while kill -0 "$runner" 2>/dev/null; do
    status=0
    wait "$runner" || status=$?
  done
  if ((status > worst)); then worst=$status; fi
done
# The verdict file wins over the exit code.
exit "$(python3 -m headway.runner.rundir exit-code "$run_json" --or "$worst")"
