"""The frameworks' own parsers accept the trainers' rendered configurations and read the job's values from them."""

from pathlib import Path

import pytest

from headway.templates.trainers import framework
from headway.templates.trainers.framework import known_of

from .jobs import job, parsed_and_keys, planned
from .test_published import needs_megatron, needs_peers
from .test_tables import JOBS, TABLES


def assert_accepted(kind: str, tmp_path: Path) -> set[str]:
    """Return the framework's keys, if it is installed here."""
    jobs = [(ranks, fields) for each, ranks, fields in JOBS if each == kind]
    plans = [planned(job(kind, ranks, **fields), ranks, tmp_path / str(index)) for index, (ranks, fields) in enumerate(jobs)]
    configs, keys = parsed_and_keys(kind, plans)
    for plan, config in zip(plans, configs, strict=True):
        known, read = known_of(plan), TABLES[kind].read(config, plan.world_size)
        names = ("seed", "steps", "layout.tp", "layout.pp", "layout.cp", "batch.global", "batch.micro", "precision.compute",
                 "optimizer.lr", "optimizer.beta2", "optimizer.schedule", "checkpoint.shared.steps")  # fmt: skip
        expected = {name: known[name] for name in names if read.get(name) is not None and known[name] is not None}
        assert len(expected) > 4
        assert {name: read[name] for name in expected} == pytest.approx(expected)
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hf", "lightning"])
def test_hugging_face_and_lightning_accept_the_configuration_and_keys(kind: str, tmp_path: Path) -> None:
    assert framework._names(kind).keys == assert_accepted(kind, tmp_path)


@needs_peers
@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.parametrize("kind", ["torchtitan", "deepspeed"])
def test_torchtitan_and_deepspeed_accept_the_configuration(kind: str, tmp_path: Path) -> None:
    assert_accepted(kind, tmp_path)


@needs_peers
@needs_megatron
@pytest.mark.slow
@pytest.mark.variant
def test_megatron_accepts_the_configuration(tmp_path: Path) -> None:
    assert_accepted("megatron", tmp_path)
