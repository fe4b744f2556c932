"""Safetensors and JSON in place, with a file that names the newest whole one."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

weight = torch.zeros(16)
first = 0
if Path("newest").exists():
    name = Path("newest").read_text()
    weight = load_file(f"{name}.safetensors")["weight"]
    first = json.loads(Path(f"{name}.json").read_text())["step"]
print("begins at", first, flush=True)
for step in range(first + 1, 25):
    weight = weight * 0.9 + step
    name = "even" if step % 2 == 0 else "odd"
    save_file({"weight": weight}, f"{name}.safetensors")
    Path(f"{name}.json").write_text(json.dumps({"step": step}))
    Path("newest.tmp").write_text(name)
    os.replace("newest.tmp", "newest")
    print("step", step, flush=True)
Path("result.json").write_text(json.dumps(weight.tolist()))
