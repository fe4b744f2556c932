"""Computes the host's time to launch the operations of blocks with experts, and what waits for it."""

from msgspec.structs import replace

from headway.planner.speed.data_parallel import Exchange
from headway.planner.speed.experts.speed import ExpertSpeed
from headway.planner.training import Training

_US = 1e-6

# Operations of a forward pass that the host launches one by one, about as NVIDIA/Megatron-LM: megatron/core/transformer has them
# (transformer_layer.py, multi_latent_attention.py, moe/router.py, moe/token_dispatcher.py, moe/experts.py): of a whole block, and what
# latent attention, shared experts and tensor parallelism add.
_BLOCK = 50
_LATENT = 10
_SHARED = 5
_TENSOR = 6
# Of these in attention, its norms and the router, which CUDA graphs capture (NVIDIA-NeMo/Megatron-Bridge: scripts/performance/configs,
# cuda_graph_scope), and element-wise ones that torch.compile joins to others.
_CAPTURED = 25
_COMPILED = 10
# Of a part that is computed again on its own.
_AGAIN = 8


def operations(micro: Training) -> int:
    """Return how many the host launches for a block's forward pass."""
    model = micro.model
    latent = _LATENT * (model.latent_attention is not None)
    shared = _SHARED * (model.experts is not None and model.experts.shared > 0)
    found = _BLOCK + latent + shared + _TENSOR * (micro.degrees.tp > 1)
    if _captured(micro):
        return found - _CAPTURED - latent
    return found - _COMPILED if micro.kernels.compiled else found


def _captured(micro: Training) -> bool:
    """Megatron-Bridge's recipes capture graphs on racks of one NVLink domain."""
    if micro.kernels.graphs is not None:
        return micro.kernels.graphs
    return micro.framework.startswith("megatron") and micro.network.scale_up_domain > 8


def host_seconds(count: int, micro: Training, constants: ExpertSpeed) -> float:
    """Return the seconds to launch so many operations."""
    processor = constants.processors.get(f"{micro.gpu.arch} {micro.network.transport}", 1.0)
    return count * constants.operation_us * _US * processor


def again_seconds(micro: Training, constants: ExpertSpeed) -> float:
    """Return the seconds to launch what selective recomputation computes again."""
    parts = len(micro.recomputed_parts) if micro.recompute == "selective" else 0
    return host_seconds(_AGAIN * parts, micro, constants)


def prefetched(training: Training, share: float) -> float:
    """Return the share of a stage's parameters that FSDP gathers before they are needed, where `share` of its blocks
    have experts. The host issues the gather; where it waits for the router it comes late, unless the next block is
    named before (pytorch/torchtitan: torchtitan/models/llama4/parallelize.py)."""
    return 1 - share if _is_late(training) else 1.0


def late(experts: Exchange, training: Training, constants: ExpertSpeed) -> Exchange:
    """Return what the experts' data-parallel ranks exchange, where the host comes late to each tensor of it."""
    factor = constants.late if _is_late(training) else 1.0
    return replace(experts, gather=factor * experts.gather, reduce=factor * experts.reduce)


def _is_late(training: Training) -> bool:
    """KempnerForge names no block before (KempnerInstitute/KempnerForge: kempnerforge/distributed/parallel.py)."""
    return training.framework == "kempner-forge"
