"""One file that is written anew at each step, by renaming; a log that is appended to."""

import json
import os
from pathlib import Path

import numpy as np
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
first = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    first = state["step"]
print("begins at", first, flush=True)
for step in range(first + 1, 31):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save(state, "state.tmp")
    os.replace("state.tmp", "state.pt")
    print("step", step, flush=True)
Path("result.json").write_text(json.dumps(model.weight.tolist()))
np.save("result.npy", model.weight.detach().numpy())
