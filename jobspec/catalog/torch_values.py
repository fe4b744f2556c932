"""Lists the values that torch's own variables take.

pytorch/pytorch v2.13.0: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h (`key:value` with commas between them; torch ends
with an error at other text), torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp and Utils.hpp (getCvarInt: std::stoi).
"""

import re

from headway.jobspec.flow import flow
from headway.jobspec.suggest import nearest

_ALLOCATORS = frozenset(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"))
_KEYS = (
    *(
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "graph_capture_record_stream_reuse",
        "max_non_split_rounding_mb",
    ),
    *("max_split_size_mb", "per_process_memory_fraction", "pinned_free_catch_all", "pinned_num_register_threads"),
    *(
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
    ),
    *("roundup_power2_divisions", "throw_on_cudamalloc_oom"),
)
_NUMBERS = frozenset(
    f"TORCH_NCCL_{name}"
    for name in (
        "ASYNC_ERROR_HANDLING",
        "COORD_CHECK_MILSEC",
        "HEARTBEAT_TIMEOUT_SEC",
        "TRACE_BUFFER_SIZE",
        "WAIT_TIMEOUT_DUMP_MILSEC",
    )
) | {"TORCH_FR_BUFFER_SIZE"}
_PAIR = re.compile(r"([a-z0-9_]+)([:=])(\[[^\]]*\]|[^,\[\]]*)")


def unknown_to_torch(name: str, value: str) -> tuple[str, str, str | None] | None:
    """Return the message, the hint and the fix for a value with which torch ends at its start or its first allocation; None for others."""
    if name in _NUMBERS and not re.fullmatch(r"\s*[+-]?[0-9]+.*", value):
        meant = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}.get(value.strip().lower())
        hint = "write a number in quotes" if meant is None else f'write `"{meant}"`'
        return f"`{name}` is a number, found `{value}`: torch ends with an error", hint, None if meant is None else f'"{meant}"'
    if name not in _ALLOCATORS:
        return None
    pairs = [_PAIR.fullmatch(each.strip()) for each in re.split(r",(?![^\[]*\])", value) if each.strip()]
    written = []
    for pair in pairs:
        if pair is None:
            return None
        key = pair[1] if pair[1] in _KEYS else nearest(pair[1], _KEYS) or pair[1]
        written.append(f"{key}:{pair[3]}")
    meant, given = ",".join(written), ",".join(each.strip() for each in re.split(r",(?![^\[]*\])", value) if each.strip())
    if not written or meant == given:
        return None
    wrong = next(pair[0] for pair, right in zip(pairs, written, strict=True) if pair is not None and pair[0] != right)
    return f"`{name}` has `{wrong}`, at which torch ends with an error", f"write `{flow(meant)}`", flow(meant)
