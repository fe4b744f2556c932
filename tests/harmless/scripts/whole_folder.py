"""Lists its working folder, keeps a copy of all that is in it beside its results, and lists it again."""

import os
import shutil
from pathlib import Path


def listed() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


Path("train.yaml").write_text("lr: 0.1\n")
print(os.environ.get("RANK"), listed())
shutil.copytree(".", "kept", ignore=shutil.ignore_patterns("kept"))
Path("runs").mkdir()
Path("runs", "events").write_text("as TensorBoard's SummaryWriter, which writes there by default\n")
print(listed())
