"""Computes the time in which ranks exchange tokens with their experts and back, by dispatcher."""

from msgspec import Struct

from headway.planner.framework import Framework
from headway.planner.speed.collectives import Group
from headway.planner.speed.cost import ACTIVATION
from headway.planner.speed.experts.speed import ExpertSpeed
from headway.planner.speed.rates import Rates
from headway.planner.training import Network, Training

_US = 1e-6


class Dispatcher(Struct, frozen=True):
    """How tokens travel.

    `copies`: how often a routed token is read or written in addition, in one direction. `once`: a token goes once to a domain however many
    of its experts are there, and is handed on inside. `gathers`: all ranks get all tokens. `poster` names the library whose processor
    threads post each token's message, where adapters take none from the accelerator.
    """

    copies: int
    once: bool = False
    gathers: bool = False
    poster: str = ""

    def fused(self, framework: Framework) -> bool:
        """Whether one kernel sorts tokens for their experts, and one adds up what comes back (NVIDIA/TransformerEngine: permutation.py).
        Megatron-Core's gathering dispatcher and frameworks in plain PyTorch index and scatter instead."""
        return not self.gathers and (framework.startswith("megatron") or framework == "automodel")


_ALLTOALL = Dispatcher(copies=6)
_DISPATCHERS = {
    "alltoall": _ALLTOALL,
    "allgather": Dispatcher(copies=4, gathers=True),
    "deepep": Dispatcher(copies=4, once=True),
    "hybridep": Dispatcher(copies=4, once=True),
    "deepep-uccl": Dispatcher(copies=4, once=True, poster="uccl"),
    "deepep-nvshmem": Dispatcher(copies=4, once=True, poster="nvshmem"),
}


def dispatcher_of(micro: Training) -> Dispatcher:
    """Return the dispatcher that is named, or that the framework takes: Megatron-Bridge's recipes take hybridep
    (NVIDIA-NeMo/Megatron-Bridge: scripts/performance/configs)."""
    usual = "hybridep" if micro.framework.startswith("megatron") else "alltoall"
    return _DISPATCHERS.get(micro.kernels.dispatcher or usual, _ALLTOALL)


def sent_tokens(micro: Training) -> float:
    """Return tokens of a microbatch that a rank sends to experts, or gets where it is the busiest."""
    split = micro.degrees.tp if micro.degrees.sequence_parallel else 1
    return micro.expert_load * micro.tokens_per_rank / split


def exchanged(micro: Training, rates: Rates, constants: ExpertSpeed) -> float:
    """Return seconds of dispatch and combine together that no computation hides: nothing is hidden unless requested, as
    in Megatron-Core (NVIDIA/Megatron-LM: megatron/core/model_parallel_config.py, overlap_moe_expert_parallel_comm).

    Where processors post the messages they compete with the kernels' launches: half as much is hidden.
    """
    seconds = 2 * one_way(micro, rates, constants)
    if not micro.overlaps.experts:
        return seconds
    return seconds * (1 - constants.hidden / (2 if dispatcher_of(micro).poster else 1))


def sent_bytes(micro: Training, group: Group) -> float:
    """Return what a rank sends to others of its expert-parallel group in one direction."""
    experts, dispatcher = micro.model.experts, dispatcher_of(micro)
    if experts is None or group.size == 1:
        return 0.0
    size = _size(micro)
    if dispatcher.gathers:
        return size * (group.size - 1)
    return size * sum(_copies(group, experts.top_k, dispatcher.once))


def _size(micro: Training) -> float:
    """Return bytes of the tokens once. Ranks that split one expert all get them."""
    return ACTIVATION * micro.model.hidden * sent_tokens(micro) * micro.degrees.expert_tp


def one_way(micro: Training, rates: Rates, constants: ExpertSpeed) -> float:
    """Return seconds in one direction. Inside and beyond a domain tokens travel at the same time."""
    group, experts, dispatcher = rates.groups.ep, micro.model.experts, dispatcher_of(micro)
    if group.size == 1 or experts is None:
        return 0.0
    size = _size(micro)
    if dispatcher.gathers:
        return _gathered(group, size, rates, micro.network, constants)
    inside, beyond = _copies(group, experts.top_k, dispatcher.once)
    seconds = size * inside / (micro.network.scale_up_bytes_s * constants.domain)
    if group.domains > 1:
        over = size * beyond / _adapter_bytes_s(micro.network, constants)
        crowd = 1.0 if dispatcher.once else (group.domains / 2) ** constants.crowding
        seconds = max(seconds, over * crowd + beyond * _posted(micro, dispatcher, constants))
    return rates.links.all_to_all(group, 0.0) + seconds


def _posted(micro: Training, dispatcher: Dispatcher, constants: ExpertSpeed) -> float:
    """Return seconds that processors need to post the tokens' messages to one domain. On hosts with Blackwell they keep
    up with the adapters (awslabs/awsome-distributed-ai: ep-backend-comparison, 84 to 94 of 100 GB/s)."""
    if not dispatcher.poster:
        return 0.0
    each = constants.message_us[dispatcher.poster] if micro.gpu.arch == "Hopper" else 0.0
    return _US * (constants.proxy_us[dispatcher.poster] + sent_tokens(micro) * each)


def _adapter_bytes_s(network: Network, constants: ExpertSpeed) -> float:
    """Return the bandwidth of one rank to other domains."""
    share = constants.fabric if network.gpu_direct else constants.staged
    return network.scale_out_bytes_s * share / network.oversubscription


def _gathered(group: Group, size: float, rates: Rates, network: Network, constants: ExpertSpeed) -> float:
    """Return the seconds in which every rank's `size` bytes go round the ring."""
    around = network.scale_up_bytes_s * constants.domain
    if group.domains > 1:
        around = min(around, group.local * _adapter_bytes_s(network, constants))
    return rates.links.all_gather(group, 0.0) + size * (group.size - 1) / around


def _copies(group: Group, top_k: int, once: bool) -> tuple[float, float]:
    """Return how often a token goes to another rank of its domain, and to another domain, on the mean over evenly
    chosen experts."""
    if not once:
        return top_k * (group.local - 1) / group.size, top_k * (group.size - group.local) / group.size
    # What comes in from other domains is handed on inside like what starts there.
    inside = (group.size - group.domains) * _reached(group.size, top_k)
    return inside, (group.domains - 1) * _reached(group.domains, top_k)


def _reached(places: int, top_k: int) -> float:
    """Return the chance that at least one of a token's experts is in one of so many places."""
    return 1 - (1 - 1 / places) ** top_k
