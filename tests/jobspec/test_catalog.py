"""The catalog: presets have the parameters that publishers and transformers count, rows are complete, the page lists them all."""

import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from headway.jobspec.catalog.gpus import Gpu, gpus
from headway.jobspec.catalog.huggingface import FAMILIES
from headway.jobspec.catalog.models import Preset, models, preset
from headway.jobspec.catalog.nics import nics
from headway.jobspec.catalog.switches import switches
from headway.jobspec.check.model import check_model
from headway.jobspec.resolve.model import ModelSizes, resolve_model
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.model import Model

ROOT = Path(__file__).parents[2]
NOWHERE = Path("/nonexistent")

# All parameters and active ones of the models that transformers 5.23 builds (on torch's meta device) from the published configurations.
# It has none for gpt-3-13b, whose heads do not make up its width.
BUILT = {
    "llama-2-7b": (6738415616, 6738415616),
    "llama-2-13b": (13015864320, 13015864320),
    "llama-2-70b": (68976648192, 68976648192),
    "llama-3-8b": (8030261248, 8030261248),
    "llama-3-70b": (70553706496, 70553706496),
    "llama-3.1-8b": (8030261248, 8030261248),
    "llama-3.1-70b": (70553706496, 70553706496),
    "llama-3.1-405b": (405853388800, 405853388800),
    "llama-3.2-1b": (1235814400, 1235814400),
    "llama-3.2-3b": (3212749824, 3212749824),
    "llama-4-scout": (107769861120, 17172894720),
    "llama-4-maverick": (400711848960, 17184691200),
    "gpt-3-1.3b": (1315723264, 1315723264),
    "gpt-3-6.7b": (6658404352, 6658404352),
    "gpt-3-175b": (174604259328, 174604259328),
    "mixtral-8x7b": (46702792704, 12879925248),
    "mixtral-8x22b": (140630071296, 39161468928),
    "deepseek-v3": (671026404352, 37552282624),
    "qwen3-0.6b": (596049920, 596049920),
    "qwen3-1.7b": (1720574976, 1720574976),
    "qwen3-4b": (4022468096, 4022468096),
    "qwen3-8b": (8190735360, 8190735360),
    "qwen3-14b": (14768307200, 14768307200),
    "qwen3-32b": (32762123264, 32762123264),
    "qwen3-30b-a3b": (30532122624, 3353032704),
    "qwen3-235b-a22b": (235093634560, 22190763520),
    "nemotron-4-15b": (15628775424, 15628775424),
    "nemotron-4-340b": (341029195776, 341029195776),
}

# Parameters without embedding and output layer, as the model cards of Qwen3 and the reports of Nemotron-4 print them.
WITHOUT_EMBEDDING = {
    "qwen3-0.6b": "0.44B",
    "qwen3-1.7b": "1.4B",
    "qwen3-4b": "3.6B",
    "qwen3-8b": "6.95B",
    "qwen3-14b": "13.2B",
    "qwen3-32b": "31.2B",
    "qwen3-30b-a3b": "29.9B",
    "qwen3-235b-a22b": "234B",
    "nemotron-4-15b": "12.5B",
    "nemotron-4-340b": "331.6B",
}


def sizes(name: str) -> ModelSizes:
    return resolve_model(Model(preset=name), NOWHERE)


def agrees(count: int, printed: str) -> bool:
    """Return whether both agree within 1 % or one unit of the last printed digit: some publishers round, some truncate."""
    digits = printed.removesuffix("B")
    unit = Fraction(1, 10 ** len(digits.partition(".")[2]))
    tolerance = max(unit, Fraction(digits) / 100) * 10**9
    return abs(count - Fraction(digits) * 10**9) <= tolerance


@pytest.mark.parametrize("name", BUILT)
def test_parameters_of_a_preset_match_transformers(name: str) -> None:
    assert (sizes(name).parameters, sizes(name).active_parameters) == BUILT[name]


def test_only_the_preset_that_transformers_cannot_build_has_no_counts() -> None:
    assert models().keys() - BUILT.keys() == {"gpt-3-13b"}


@pytest.mark.parametrize("published", models().values(), ids=lambda published: published.name)
def test_parameters_agree_with_the_published_number(published: Preset) -> None:
    found = sizes(published.name)
    assert agrees(found.parameters, published.parameters)
    assert (published.active is None) == (found.experts is None)
    assert published.active is None or agrees(found.active_parameters, published.active)


@pytest.mark.parametrize("name", WITHOUT_EMBEDDING)
def test_parameters_without_embedding_agree_with_the_published_number(name: str) -> None:
    found = sizes(name)
    assert agrees(found.parameters - found.embedding_parameters - found.output_parameters, WITHOUT_EMBEDDING[name])


@pytest.mark.parametrize("published", models().values(), ids=lambda published: published.name)
def test_preset_has_a_lower_case_name_and_passes_the_checks(published: Preset) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9.]+)+", published.name)
    assert list(check_model(Model(preset=published.name), NOWHERE)) == []
    assert list(check_model(published.model, NOWHERE)) == []


def test_preset_read_alone_equals_that_of_the_whole_catalog() -> None:
    assert [preset(name) for name in models()] == list(models().values())


@pytest.mark.parametrize("name", ["", "llama", "llama-3", ".*", "llama-3.1-8b:", "llama-3.1-8b\n"])
def test_partial_name_of_a_preset_is_not_accepted(name: str) -> None:
    with pytest.raises(KeyError):
        preset(name)


def test_catalog_is_read_only_for_a_preset_and_only_in_part() -> None:
    models.cache_clear()
    preset.cache_clear()
    model = Model(vocab_size=256, layers=2, hidden=64, heads=4, ffn_hidden=176)
    assert list(check_model(model, NOWHERE)) == []
    assert resolve_model(model, NOWHERE).layers == 2
    assert (models.cache_info().currsize, preset.cache_info().currsize) == (0, 0)
    assert resolve_model(Model(preset="llama-3.1-8b"), NOWHERE).layers == 32
    assert (models.cache_info().currsize, preset.cache_info().currsize) == (0, 1)


@pytest.mark.parametrize("gpu", gpus().values(), ids=lambda gpu: gpu.name)
def test_gpu_is_named_after_its_memory_and_at_most_that_is_usable(gpu: Gpu) -> None:
    assert int(gpu.name.rsplit("-", 1)[1]) == gpu.memory_gib
    assert gpu.memory_gib * 0.9 < gpu.memory_bytes / 2**30 <= gpu.memory_gib


@pytest.mark.parametrize("gpu", gpus().values(), ids=lambda gpu: gpu.name)
def test_fp8_is_twice_as_fast_as_bf16_and_superchips_have_arm_hosts(gpu: Gpu) -> None:
    assert gpu.fp8_tflops is None or abs(gpu.fp8_tflops - 2 * gpu.bf16_tflops) <= 1
    assert gpu.host_arch == ("aarch64" if gpu.name.startswith("G") else None)


def test_adapters_support_transports_that_a_fabric_can_have() -> None:
    transports = get_args(Fabric.model_fields["transport"].annotation)
    assert all(nic.gbps and set(nic.gbps) <= set(transports) for nic in nics().values())
    assert nics()["ConnectX-8"].gbps == {"infiniband": 800, "roce": 400, "tcp": 400}


def test_lanes_of_switches_have_a_standard_rate() -> None:
    # IEEE 802.3ck and earlier: PAM4 lanes of 50 and 100 Gb/s. InfiniBand's HDR has lanes of 50, NDR of 100, XDR of 200.
    rates = {"ethernet": {50, 100}, "infiniband": {50, 100, 200}}
    assert all(switch.gbps / switch.lanes in rates[switch.transport] for switch in switches().values())
    assert switches()["Z9864F-ON"].buffer_mb == 165


def test_every_row_has_a_source() -> None:
    catalogue = (models(), gpus(), nics(), switches())
    sources = [row.source for table in catalogue for row in table.values()]
    assert len(sources) == sum(map(len, catalogue))
    assert all(source.startswith("https://") for source in sources)


def test_page_lists_the_whole_catalog(update_golden: bool) -> None:
    page = ROOT / "docs" / "models.md"
    head = HEAD.replace("{types}", ", ".join(f"`{kind}`" for kind in FAMILIES))
    text = "\n".join([head, *_models(), GPUS, *_gpus(), NICS, *_nics(), SWITCHES, *_switches()]) + "\n"
    if update_golden:
        page.write_text(text)
    assert page.read_text() == text


def _table(columns: str, rows: Iterable[Iterable[object]]) -> list[str]:
    lines = [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return [f"| {columns} |", f"|{' --- |' * (columns.count('|') + 1)}", *lines]


def _models() -> list[str]:
    columns = "name | parameters | active | layers | hidden | heads | KV heads | head | MLP | experts | vocabulary | source"
    return _table(columns, ((name, *_sizes(sizes(name)), f"<{found.source}>") for name, found in models().items()))


def _sizes(found: ModelSizes) -> list[object]:
    active = None if found.experts is None else _billions(found.active_parameters)
    heads = (found.heads, "latent" if found.latent_attention else found.kv_heads, found.head_dim)
    widths = (found.ffn_hidden or None, _experts(found))
    return [_billions(found.parameters), active, found.layers, found.hidden, *heads, *widths, found.vocab_size]


def _experts(found: ModelSizes) -> str | None:
    experts = found.experts
    if experts is None:
        return None
    shared = f" + {experts.shared}" if experts.shared else ""
    return f"{experts.top_k}{shared} of {experts.count} x {experts.ffn_hidden} in {found.expert_layers} blocks"


def _billions(count: int) -> str:
    return f"{count / 1e9:.4g}B"


def _gpus() -> list[str]:
    columns = "name | memory (GiB) | usable (GiB) | BF16 (TFLOP/s) | FP8 (TFLOP/s) | joined | GB/s | host | source"
    return _table(
        columns,
        (
            (
                gpu.name,
                gpu.memory_gib,
                gpu.usable_gib,
                gpu.bf16_tflops,
                gpu.fp8_tflops,
                gpu.scale_up_domain,
                gpu.scale_up_gb_s,
                gpu.host_arch,
                f"<{gpu.source}>",
            )
            for gpu in gpus().values()
        ),
    )


def _nics() -> list[str]:
    rows = ((nic.name, nic.vendor, *(nic.gbps.get(kind) for kind in TRANSPORTS), _link(nic.source)) for nic in nics().values())
    return _table(f"name | vendor | {' | '.join(TRANSPORTS)} | source", rows)


def _switches() -> list[str]:
    rows = (
        (switch.name, switch.vendor, switch.asic, switch.ports, switch.gbps, switch.lanes, switch.buffer_mb, _link(switch.source))
        for switch in switches().values()
    )
    return _table("name | vendor | ASIC | ports | Gb/s | lanes | buffer (MB) | source", rows)


def _link(source: str) -> str:
    """Return the source as a link; a path after a repository's address stays text."""
    address, colon, path = source.partition(": ")
    return f"<{address}>{colon}{path}"


TRANSPORTS = ("infiniband", "roce", "efa", "tcp")

HEAD = """# Models and hardware by name

The names for `model.preset` in a job, and for `gpu`, `nic` and `switches.model` in a cluster. A value in a document overrides the value
that is listed here.

## Models

Parameters are computed from the sizes. `active` counts those that one token uses: all but the routed experts not chosen for it.
Under `experts`, `8 + 1 of 256 x 2048` means that each token goes through 8 of 256 experts of inner width 2048 and through 1 shared one.
A preset does not include the scaling of rotary positions, sliding windows and activations. Llama 4 is its text part, DeepSeek-V3 its
main model without multi-token prediction.

`model.config` reads a config.json of these `model_type`s: {types}.
"""
GPUS = """
## GPUs

Rates are peaks for dense matrices. `usable` is the memory that frameworks report, if a source has printed it. `joined` is the number of
GPUs that usually share an NVLink or Infinity Fabric domain; each GPU's bandwidth is in GB/s, both directions together.

A cluster describes a GPU that is not listed by what it differs in from one that is:
`{gpu: L40S, gpu_model: {like: A100-SXM-80, memory: 48GB, bf16_tflops: 362, fp8_tflops: 733, nvlink: 64GB/s}}`. Estimates then take the
efficiencies measured on the listed GPU, with wide intervals.
"""
NICS = """
## Adapters

The fastest rate of one port on each transport, in Gb/s.
"""
SWITCHES = """
## Switches

Ports for the fabric, their fastest rate, and the lanes of one port as SONiC counts them.
"""
