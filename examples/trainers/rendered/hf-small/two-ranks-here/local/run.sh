#!/bin/bash
# hf-small on two-ranks-here. Rendered by headway; edit the spec, not this file. Its data are below `main`.
set -euo pipefail

main() {
  runs=${HEADWAY_RUNS:-runs}
  export HEADWAY_NODES=127.0.0.1
  run_json=$(open_run "$runs" hf-small-be12c009-"$(date +%Y%m%dT%H%M%S.%N)" --attempt 0)

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
  "batch": {"global_sequences": 16, "micro_sequences": 4, "sequence_length": 8},
  "checkpoint": {
    "horizon_steps": 0,
    "host_memory_bytes": null,
    "tiers": [{"every_s": null, "every_steps": 20, "keep": 3, "kind": "shared", "url": null}]
  },
  "cluster": "two-ranks-here",
  "corruption": null,
  "data": null,
  "domains": [],
  "grace_s": 30.0,
  "history": [],
  "limits": {"gpu_hours": null, "time_s": null},
  "mesh": {"cp": 1, "dp_replicate": 2, "dp_shard": 1, "pp": 1, "tp": 1},
  "metrics_port": null,
  "min_slots": null,
  "model": {
    "dropout": 0.0,
    "ffn_hidden": 32,
    "heads": 2,
    "hidden": 16,
    "kv_heads": 2,
    "layers": 1,
    "norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_embeddings": false,
    "vocab_size": 64
  },
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
    "warmup_steps": 10,
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
  "spec_hash": "be12c009c40b70a3bd9f93139319ead07f4af2da138e0716ab42b2b983feaa8c",
  "steps": 100,
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
      "argv": ["examples/trainers/train_hf.py", "{config}/training_args.json"],
      "files": {
        "training_args.json": {
          "adam_beta1": 0.9,
          "adam_beta2": 0.95,
          "adam_epsilon": 1e-08,
          "block_size": 8,
          "ddp_backend": "gloo",
          "ddp_timeout": 600,
          "disable_tqdm": true,
          "do_train": true,
          "ffn_hidden": 32,
          "gradient_accumulation_steps": 2,
          "heads": 2,
          "hidden": 16,
          "layers": 1,
          "learning_rate": 0.01,
          "logging_steps": 20,
          "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
          "lr_scheduler_type": "cosine_with_min_lr",
          "max_grad_norm": 1.0,
          "max_steps": 100,
          "output_dir": "{run_directory}/checkpoints",
          "per_device_train_batch_size": 4,
          "run_name": "{run}",
          "save_steps": 20,
          "save_strategy": "steps",
          "save_total_limit": 3,
          "seed": 1,
          "use_cpu": true,
          "vocab_size": 64,
          "warmup_steps": 10,
          "weight_decay": 0.1
        }
      },
      "late": [1],
      "late_values": [["training_args.json", "output_dir"], ["training_args.json", "run_name"]],
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
  "model": {
    "config": null,
    "experts": null,
    "head_dim": 8,
    "latent_attention": null,
    "linear_bias": false,
    "max_positions": null,
    "mlp": "gated",
    "norm": "rms",
    "positions": "rotary",
    "preset": null,
    "qk_norm": false,
    "qkv_bias": false
  },
  "mounts": [],
  "name": "hf-small",
  "overlap": {"experts": null, "gradients": null, "parameters": null, "pipeline": null, "tensor": null},
  "precision": {"compute": "fp32", "parameters": null, "reduce": null},
  "recompute": null,
  "resilience": {"corruption": null, "notify": null, "replica_recovery": false},
  "scheduler": null,
  "secrets": [],
  "setup": [],
  "sweep": null,
  "trainer": {
    "kind": "hf",
    "options": {
      "arguments": {
        "block_size": "{batch.sequence}",
        "disable_tqdm": true,
        "ffn_hidden": "{model.ffn_hidden}",
        "heads": "{model.heads}",
        "hidden": "{model.hidden}",
        "layers": "{model.layers}",
        "logging_steps": 20,
        "vocab_size": "{model.vocab_size}"
      },
      "script": "examples/trainers/train_hf.py"
    }
  }
}
SPEC_JSON
}

main
