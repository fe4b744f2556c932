"""Writers that torch does not know, in the same folders as those that it does."""

import json
import os
import pickle
import sqlite3

import facts
import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file, save_model

os.mkdir("saved")
os.chdir("saved")
rng = np.random.default_rng(0)
array = rng.normal(size=(10, 10))
np.save("array.npy", array)
np.savez("arrays.npz", a=array)
mapped = np.lib.format.open_memmap("mapped.npy", mode="w+", dtype=np.float32, shape=(100,))
mapped[:] = 3
mapped.flush()
pickle.dump({"step": 1}, open("state.pickle", "wb"))
json.dump({"step": 1}, open("state.json", "w"))
with sqlite3.connect("metrics.db") as base:
    base.execute("create table loss (step integer, value real)")
    base.execute("insert into loss values (1, 0.5)")
base.close()
save_file({"w": torch.ones(4, 4)}, "model.safetensors", metadata={"format": "pt"})
save_arrays({"w": array}, "arrays.safetensors")
save_model(torch.nn.Linear(2, 2, bias=False).requires_grad_(False).apply(lambda m: m.weight.fill_(1)), "linear.safetensors")
print(
    load_file("model.safetensors")["w"].sum().item(),
    np.load("array.npy").sum() == array.sum(),
    float(np.load("mapped.npy").sum()),
)
torch.jit.save(torch.jit.script(torch.nn.ReLU()), "scripted.pt")
torch.save({"w": torch.ones(2)}, "model.pt")
torch.save([], "empty.pt", pickle_protocol=4)
torch.save({"nested": {"deep": [torch.zeros(1), "text"]}}, open("object.pt", "wb"))
with open("appended.bin", "ab") as file:
    for number in range(3):
        torch.save(number, file, _use_new_zipfile_serialization=False)
with open("appended.bin", "rb") as file:
    print([torch.load(file) for _ in range(3)])
os.chdir("..")
facts.write(listings=facts.listings("saved"))
