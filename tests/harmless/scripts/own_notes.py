"""Keeps notes of its own beside dcp's files, written before and after, under the name that one might want for oneself."""

import json
import os

import facts
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
for name in ("before", "after"):
    folder = f"ckpt/{name}"
    note = folder + "/checkpoint.json"
    if os.path.exists(note):
        state = {"w": torch.zeros(4)}
        dcp.load(state, checkpoint_id=folder)
        print(name, "goes on with", open(note).read(), state, flush=True)
        continue
    os.makedirs(folder)
    if name == "before":
        json.dump({"step": 1, "tokens": 12345}, open(note, "w"))
    dcp.save({"w": torch.ones(4)}, checkpoint_id=folder)
    if name == "after":
        json.dump({"step": 1, "tokens": 12345}, open(note, "w"))
    print(name, "own note:", open(note).read(), flush=True)
facts.write(listings=facts.listings("ckpt"))
dist.destroy_process_group()
