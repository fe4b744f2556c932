"""Folders: working folder, its changes, relative paths, masks, links, read-only ones, temporary ones, and all that lists them."""

import os
import shutil
import tempfile
from pathlib import Path

import facts
import torch

os.umask(0o077)
Path("a/b").mkdir(parents=True)
torch.save(1, "a/one.pt")
os.chdir("a/b")
torch.save(2, "../two.pt")
torch.save(3, "three.pt")
os.symlink("../two.pt", "link.pt")
torch.save(4, "link.pt")
os.link("three.pt", "hard.pt")
print(torch.load("link.pt"), torch.load("../two.pt"), os.path.islink("link.pt"), os.getcwd().rpartition("/")[2], flush=True)
os.chdir("../..")
descriptor = os.open("a", os.O_RDONLY)
print(sorted(os.listdir(descriptor)), flush=True)
os.close(descriptor)
shutil.copytree("a", "copy", symlinks=True)
shutil.move("copy/b", "moved")
os.chmod("a/one.pt", 0o400)
torch.save(5, "gone.pt")
os.remove("gone.pt")
with tempfile.TemporaryDirectory() as folder:
    torch.save(6, Path(folder) / "six.pt")
    print("temporary", os.listdir(folder), flush=True)
os.mkdir("emptied")
torch.save(7, "emptied/seven.pt")
os.remove("emptied/seven.pt")
os.rmdir("emptied")
os.mkdir("removed")
torch.save(8, "removed/eight.pt")
shutil.rmtree("removed")
before = os.stat("a").st_mtime_ns
torch.load("a/two.pt")
print(
    "unchanged by a load",
    os.stat("a").st_mtime_ns == before,
    [name for name in ("emptied", "removed") if os.path.exists(name)],
    flush=True,
)
(Path("zip")).mkdir()
torch.save(torch.arange(10), "zip/a.pt")
shutil.make_archive("zipped", "tar", "zip")
print(shutil.disk_usage(".").total > 0, sorted(__import__("tarfile").open("zipped.tar").getnames()), flush=True)
os.remove("zipped.tar")
facts.write(listings={name: facts.listings(name) for name in ("a", "moved", "zip")})
