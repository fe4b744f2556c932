"""Converts a cluster's shape into the text of its slurm.conf, gres.conf and hosts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import network
from .addresses import Addresses


@dataclass(frozen=True)
class Shape:
    """The resources that every node claims (Slurm is configured not to compare), and settings that replace or add to slurm.conf."""

    nodes: int = 2
    cpus: int = 4
    gpus: int = 0
    memory_mib: int = 16_000
    partition: str = "main"
    cred_expire_s: int = 5
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, str] = field(default_factory=dict)
    """Further partitions of all nodes: their options, by name."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files next to slurm.conf: their texts, by name."""
    has_networks: bool = False
    """Whether each node has a separate network, with an address for Slurm and one that its name resolves to."""

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(1, self.nodes + 1))


def slurm_conf(shape: Shape, root: Path, addresses: Addresses) -> str:
    settings = {**_plumbing(shape, root, addresses), **_behaviour(), **_hardware(shape), **shape.settings}
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [_node_line(shape, addresses, index) for index in range(1, shape.nodes + 1)]
    lines.append(f"PartitionName={shape.partition} Nodes={','.join(shape.node_names)} Default=YES MaxTime=INFINITE State=UP")
    nodes = ",".join(shape.node_names)
    lines += [f"PartitionName={name} Nodes={nodes} State=UP {options}" for name, options in shape.partitions.items()]
    return "\n".join(lines) + "\n"


def gres_conf(shape: Shape, root: Path) -> str:
    # Slurm 22.05 registers no GPU for a Count without File
    lines = ["AutoDetect=off", *(f"Name=gpu File={device}" for device in gpu_devices(shape, root))]
    return "\n".join(lines) + "\n"


def hosts(shape: Shape, addresses: Addresses, machine_hosts: str) -> str:
    """/etc/hosts of a node: this machine's, and every node."""
    found = network.data if shape.has_networks else addresses.node_address
    lines = [f"{found(index)} n{index}" for index in range(1, shape.nodes + 1)]
    return machine_hosts.rstrip("\n") + "\n" + "\n".join(lines) + "\n"


def gpu_devices(shape: Shape, root: Path) -> list[Path]:
    return [root / "dev" / f"nvidia{index}" for index in range(shape.gpus)]


def _plumbing(shape: Shape, root: Path, addresses: Addresses) -> dict[str, str]:
    controller = network.CONTROLLER if shape.has_networks else "127.0.0.1"
    return {
        "ClusterName": "headway",
        # slurmctld refuses any other name than localhost and this machine's own
        "SlurmctldHost": f"localhost({controller})",
        "SlurmctldPort": str(addresses.controller_port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # a requeued job is held for cred_expire + 1 s: 121 s with Slurm's own value
        "AuthInfo": f"socket={root}/run/munge.sock,cred_expire={shape.cred_expire_s}",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/nodes/%n",
        "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
        "SlurmdPidFile": f"{root}/run/%n.pid",
        "SlurmctldLogFile": f"{root}/log/slurmctld.log",
        "SlurmdLogFile": f"{root}/log/%n.log",
        "MailProg": "/bin/true",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{root}/log/jobcomp.log",
    }


def _behaviour() -> dict[str, str]:
    return {
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=2,sched_interval=5,batch_sched_delay=0,sched_min_interval=0",
        "PriorityType": "priority/basic",
        "ReturnToService": "1",
        "JobRequeue": "1",
        "SlurmctldTimeout": "30",
        # a lost node is DOWN after about 20 s; no smaller value makes it faster
        "SlurmdTimeout": "10",
        "MessageTimeout": "5",
        "TCPTimeout": "2",
        # under load a run takes more than 5 s to stop
        "KillWait": "20",
        "InactiveLimit": "0",
        "MinJobAge": "3600",
    }


def _hardware(shape: Shape) -> dict[str, str]:
    settings = {
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "100",
        "SlurmdParameters": "config_overrides",
    }
    return settings | ({"GresTypes": "gpu"} if shape.gpus else {})


def _node_line(shape: Shape, addresses: Addresses, index: int) -> str:
    address = network.management(index) if shape.has_networks else addresses.node_address(index)
    where = f"NodeName=n{index} NodeAddr={address} Port={addresses.node_port(index)}"
    gres = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    return f"{where} CPUs={shape.cpus} RealMemory={shape.memory_mib}{gres} State=UNKNOWN"
