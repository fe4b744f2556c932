"""Names the frameworks that run the steps, as far as that changes their cost; memory.yaml and speed.yaml have a profile for each."""

from typing import Literal

# `megatron` is Megatron-Core with its distributed optimizer, under NeMo and Megatron-Bridge too; `megatron-2021` is Megatron-LM before
# flash attention.
Framework = Literal[
    "headway",
    "torchtitan",
    "megatron",
    "megatron-fsdp",
    "megatron-2021",
    "megatron-deepspeed",
    "deepspeed",
    "nanotron",
    "composer",
    "fms-fsdp",
    "internevo",
    "aleph",
    "kempner-forge",
    "automodel",
    "maxtext",
]
