"""What takes every file of a folder for its own: the newest of all is what it goes on from, and only three of all stay."""

import os
import time
from pathlib import Path

import facts
import torch

folder = Path("ckpt")
folder.mkdir(exist_ok=True)
newest = max(folder.glob("*"), key=lambda path: path.stat().st_mtime_ns, default=None)
start = torch.load(newest)["step"] + 1 if newest else 0
print("goes on at", start, "from", newest, flush=True)
model = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.ones_(model.weight)
if newest:
    model.load_state_dict(torch.load(newest)["model"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(start, start + 6):
    model(torch.ones(4)).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save({"step": step, "model": model.state_dict()}, folder / f"{step}.pt")
    # The kernel gives files their times in ticks of up to 10 ms: within one the newest is any.
    time.sleep(0.03)
    files = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
    for old in files[:-3]:
        os.unlink(old.path)
facts.write(weight=model.weight.tolist(), listings=facts.listings("ckpt"))
