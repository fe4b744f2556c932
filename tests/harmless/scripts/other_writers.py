"""A file that torch.save wrote is changed by others: in place, mapped, by a child, by a copy; each is read back as it was left."""

import multiprocessing
import os
import shutil
import subprocess

import torch


def in_a_child(name: str) -> None:
    torch.save({"by": torch.full((1000,), 2.0)}, name)


def in_a_mapping(name: str) -> None:
    before = torch.serialization.get_default_mmap_options()
    torch.serialization.set_default_mmap_options(__import__("mmap").MAP_SHARED)
    torch.load(name, mmap=True)["by"][10] = 7.0
    torch.serialization.set_default_mmap_options(before)


if __name__ == "__main__":
    for name in ("spawned.pt", "forked.pt", "mapped.pt", "copied.pt", "written.pt", "truncated.pt", "shell.pt"):
        if os.path.exists(name) and name != "truncated.pt":
            print("found", name, torch.load(name)["by"].sum().item())
        torch.save({"by": torch.ones(1000)}, name)
    torch.save({"by": torch.full((1000,), 3.0)}, "other.pt")
    for method, name in (("spawn", "spawned.pt"), ("fork", "forked.pt")):
        child = multiprocessing.get_context(method).Process(target=in_a_child, args=(name,))
        child.start()
        child.join()
    in_a_mapping("mapped.pt")
    shutil.copy2("other.pt", "copied.pt")
    with open("written.pt", "r+b") as file:
        file.write(open("other.pt", "rb").read())
    os.truncate("truncated.pt", 500)
    subprocess.run(["cp", "--preserve=all", "other.pt", "shell.pt"], check=True)
    for name in ("spawned.pt", "forked.pt", "mapped.pt", "copied.pt", "written.pt", "shell.pt"):
        print("left", name, torch.load(name)["by"].sum().item())
    try:
        torch.load("truncated.pt")
    except RuntimeError as error:
        print("truncated:", str(error).splitlines()[0])
