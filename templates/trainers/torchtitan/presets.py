"""Lists the functions of torchtitan's registry for models of the catalogue: torchtitan/models/*/config_registry.py (v0.3.0)."""

import types
from collections.abc import Mapping

from msgspec import Struct


class Registered(Struct, frozen=True):
    """A function of the registry. `converts` is the format of its converters, None without any."""

    module: str
    config: str
    converts: str | None = None


REGISTRY: Mapping[str, Registered] = types.MappingProxyType(
    {
        "llama-3-8b": Registered("llama3", "llama3_8b"),
        "llama-3-70b": Registered("llama3", "llama3_70b"),
        "llama-3.1-8b": Registered("llama3", "llama3_8b"),
        "llama-3.1-70b": Registered("llama3", "llama3_70b"),
        "llama-3.1-405b": Registered("llama3", "llama3_405b", "fp8"),
        "qwen3-0.6b": Registered("qwen3", "qwen3_0_6b"),
        "qwen3-1.7b": Registered("qwen3", "qwen3_1_7b"),
        "qwen3-14b": Registered("qwen3", "qwen3_14b"),
        "qwen3-32b": Registered("qwen3", "qwen3_32b"),
        "qwen3-30b-a3b": Registered("qwen3", "qwen3_30b_a3b"),
        "deepseek-v3": Registered("deepseek_v3", "deepseek_v3_671b"),
    }
)
