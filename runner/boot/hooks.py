"""Installs the hooks of each module when it is imported. Modules that a script does not import cost nothing."""

from headway.runner.boot import dcp_calls, files, heartbeat
from headway.runner.boot.after_import import after_import

_HOOKS = {
    "torch.autograd": heartbeat.see_backward,
    "torch.nn.modules.module": heartbeat.see_evaluation,
    "torch.nn.parallel.distributed": heartbeat.see_ddp,
    "torch.utils.data.dataloader": heartbeat.see_loader,
    "torch.distributed.distributed_c10d": heartbeat.see_distributed,
    "torch._dynamo": heartbeat.see_dynamo,
    "torch._dynamo.callback": heartbeat.see_compile,
    "torch.distributed.checkpoint.state_dict": dcp_calls.hook_state_dict,
    "torch.distributed.checkpoint.state_dict_loader": dcp_calls.hook_loader,
    "torch.distributed.checkpoint.state_dict_saver": dcp_calls.hook_saver,
    "torch.distributed.checkpoint.filesystem": dcp_calls.hook_filesystem,
    "torch.optim.optimizer": files.hook_optimizer,
    "torch.serialization": files.hook_serialization,
    "safetensors": files.hook_safetensors,
    "safetensors.torch": files.hook_safetensors_torch,
    "lightning.fabric.utilities.cloud_io": files.hook_lightning,
    "lightning_fabric.utilities.cloud_io": files.hook_lightning,
}
_done: list[bool] = []


def prepare() -> None:
    """Install the hooks, once per process. They do nothing before the process is a worker that sends heartbeats.

    Call this before importing libraries that keep functions of these modules under other names.
    """
    if _done:
        return
    _done.append(True)
    for name, hook in _HOOKS.items():
        after_import(name, hook)


def prepare_signs() -> None:
    """Install the builtin trainer's hooks: heartbeats only, since it uses headway's checkpoints."""
    if _done:
        return
    _done.append(True)
    for name, hook in _HOOKS.items():
        if hook.__module__ == heartbeat.__name__:
            after_import(name, hook)
