"""Tests that random damage is refused by the name of a damaged file; torch.distributed.checkpoint loads it (the control)."""

import os
import random
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.soak import record
from tests.support.damage import EVERY, Checkpoint, done_to, outcome, stored
from tests.support.worlds import run_world

pytestmark = pytest.mark.slow

TRIALS = int(os.environ.get("HEADWAY_EXAMPLES", "300"))
CONTROL = 200


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Steps 2 and 4 of a first generation, 4 and 6 of a later one, by two ranks on a node each."""
    root = tmp_path_factory.mktemp("damage") / "run"
    run_world("tests.support.ranks.saver", 2, root, nodes=2)
    found = stored(root)
    assert [vars(checkpoint.base.checkpoint) for checkpoint in found] == [
        {"step": step, "generation": generation} for step, generation in ((2, 1), (4, 1), (4, 3), (6, 3))
    ]
    return found


def test_all_damage_is_refused_by_the_name_of_a_damaged_file(checkpoints: list[Checkpoint]) -> None:
    counts = Counter[tuple[str, str]]()
    for trial in range(TRIALS):
        draw = random.Random(trial)
        kind = draw.choice(list(EVERY))
        contents = EVERY[kind](draw, checkpoints)
        with done_to(contents, checkpoints):
            for checkpoint in checkpoints:
                if any(path in checkpoint.files for path in contents):
                    found = outcome(checkpoint, contents)
                    assert found in ("refused", "harmless"), f"trial {trial}, {kind}, {checkpoint.directory.name}: {found}"
                    counts[kind, found] += 1
    record("damage", {kind: {found: counts[kind, found] for found in ("refused", "harmless")} for kind in EVERY})
    assert all(counts[kind, "refused"] for kind in EVERY)
    assert sum(counts.values()) >= TRIALS
    assert [checkpoint.read() for checkpoint in checkpoints] == [checkpoint.held for checkpoint in checkpoints]


def test_only_padding_and_equal_bytes_are_harmless_to_damage(checkpoints: list[Checkpoint]) -> None:
    """The converse of `harmless`: a flip in any byte that a chunk, a part or the manifest holds is refused."""
    (checkpoint,) = (c for c in checkpoints if c.base.checkpoint.step == 6)
    draw = random.Random(0)
    for path, slices in checkpoint.chunks.items():
        for within in draw.sample(slices, min(8, len(slices))):
            at, raw = draw.randrange(within.start, within.stop), checkpoint.files[path]
            contents = {path: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]}
            with done_to(contents, checkpoints):
                assert outcome(checkpoint, contents) == "refused"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_control_torch_distributed_checkpoint_loads_every_flipped_bit(tmp_path: Path) -> None:
    state = {"weight": torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))}
    save(state, checkpoint_id=tmp_path, no_dist=True)
    path = tmp_path / "__0_0.distcp"
    raw, begin = path.read_bytes(), payload(path)
    silent = 0
    for trial in range(CONTROL):
        at = begin * 8 + random.Random(trial).randrange(state["weight"].nbytes * 8)
        path.write_bytes(raw[: at // 8] + bytes([raw[at // 8] ^ (1 << at % 8)]) + raw[at // 8 + 1 :])
        loaded = {"weight": torch.zeros(256, 1024)}
        load(loaded, checkpoint_id=tmp_path, no_dist=True)
        silent += not torch.equal(loaded["weight"], state["weight"])
    record("control", {"flipped bits": CONTROL, "loaded by torch.distributed.checkpoint as other values": silent})
    assert silent == CONTROL


def payload(path: Path) -> int:
    """The offset of the tensor's elements in a file of torch.save, a zip archive with uncompressed members."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        (data,) = (entry for entry in archive.infolist() if entry.filename.endswith("data/0"))
        # Lengths of name and extra field end a local header of 30 bytes (APPNOTE.TXT, 4.3.7).
        file.seek(data.header_offset + 26)
        lengths = file.read(4)
    return data.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
