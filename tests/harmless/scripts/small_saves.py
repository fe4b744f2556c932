"""Many small files, saved, renamed, replaced and removed, and every listing of them."""

import os
import shutil
import tempfile
from pathlib import Path

import facts
import torch

folder = Path("ckpt")
folder.mkdir()
best = 10.0
for step in range(12):
    state = {"step": step, "w": torch.full((64,), float(step))}
    torch.save(state, folder / f"{step}.tmp")
    os.replace(folder / f"{step}.tmp", folder / f"{step}.pt")
    if abs(step - 7.5) < best:
        best = abs(step - 7.5)
        shutil.copy(folder / f"{step}.pt", folder / "best.pt")
    link = folder / "latest.new"
    link.symlink_to(f"{step}.pt")
    link.rename(folder / "latest")
    # Keeps the last three by the time at which they were written; the best one and the link stay.
    numbered = sorted(
        (e for e in os.scandir(folder) if e.name[0].isdigit()), key=lambda e: (e.stat().st_mtime_ns, int(e.name[:-3]))
    )
    for old in numbered[:-3]:
        os.unlink(old.path)
descriptor, name = tempfile.mkstemp(dir=folder, prefix="scratch-")
with os.fdopen(descriptor, "wb") as file:
    torch.save({"step": -1}, file)
os.rename(name, folder / "by-descriptor.pt")
torch.save({"old": 1}, folder / "old-format.pt", _use_new_zipfile_serialization=False)
print({name: torch.load(folder / name)["step"] for name in ("best.pt", "latest", "by-descriptor.pt")})
print("mapped", torch.load(folder / "best.pt", mmap=True)["w"].sum().item())
print("old format", torch.load(folder / "old-format.pt"))
facts.write(listings=facts.listings("ckpt"), empty=[(folder / "best.pt").stat().st_nlink])
