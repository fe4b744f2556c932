"""Describes clusters from output of scontrol, as text and as JSON: Slurm's facts are in the documents, the rest is a comment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.compile import compile_documents
from headway.infra.discover import DiscoverError, SlurmDescription, cluster_document, inventory_document, read_slurm
from headway.infra.submit.shell import CommandResult

# As slurmctld prints them, without the fields that are not read.
CONFIG = """\
Configuration data as of 2026-11-25T16:18:50
ClusterName             = Big_One
KillWait                = 120 sec
SLURM_VERSION           = 23.11.4
TopologyPlugin          = topology/{topology}
"""
NODES = """\
NodeName=gpu{n} Arch=x86_64 CoresPerSocket=48  CPUTot=192 AvailableFeatures=ib,hbm3 ActiveFeatures=ib Gres=gpu:{type}8(S:0-1) \
NodeAddr=10.0.0.{n} NodeHostName=gpu{n} Version=23.11.4 OS=Linux 6.8.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=2063000 Sockets=2 \
State={state} ThreadsPerCore=2 Partitions=train,debug  BootTime=2026-11-01T00:00:00 Reason=no IB = broken [root@2026-11-25T10:00:00]
"""
LOGIN = """\
NodeName=cpu1 Arch=aarch64 CoresPerSocket=64 Gres=(null) NodeAddr=cpu1 RealMemory=1 Sockets=1 State=IDLE ThreadsPerCore=1 Partitions=cpu
"""
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=NO OverSubscribe=NO Nodes=cpu1
PartitionName=train AllowGroups=ALL Default=YES OverSubscribe=EXCLUSIVE Nodes=gpu[1-3]
PartitionName=debug AllowGroups=ALL Default=NO OverSubscribe=NO Nodes=gpu[1-3]
"""


class Answers:
    """A shell with prepared answers; any other command fails like an unknown option."""

    folder, user = "/", "me"

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 0, detached: bool = False) -> CommandResult:
        output = self._answers.get(" ".join(argv))
        return CommandResult(1, "", "scontrol: unrecognized option") if output is None else CommandResult(0, output, "")

    def shown(self, argv: Sequence[str]) -> str:
        return " ".join(argv)


def described(gpu_type: str = "h100:", topology: str = "tree", **more: str) -> SlurmDescription:
    nodes = "".join(
        NODES.format(n=n, type=gpu_type, state=state) for n, state in ((10, "IDLE"), (2, "IDLE+DRAIN"), (1, "MIXED*"))
    )
    answers = {
        "scontrol show config": CONFIG.format(topology=topology),
        "scontrol --oneliner show node": LOGIN + nodes,
        "scontrol --oneliner show partition": PARTITIONS,
        **more,
    }
    return read_slurm(Answers(answers))


def test_documents_contain_the_facts_from_slurm() -> None:
    text = cluster_document(described(), "login.example.com", "bastion", ["module load slurm"])
    for line in (
        "name: big-one",
        "    partition: train  # further ones: cpu, debug",
        "    exclusive: true",
        "    kill_wait: 120s",
        "    login: {host: login.example.com, jump: bastion, setup: [module load slurm]}",
        "  - name: gpu  # gpu1 to gpu10",
        "    # gpu1 is MIXED+NOT_RESPONDING: no IB = broken",
        "    # gpu2 is IDLE+DRAIN: no IB = broken",
        "    count: 3",
        "    cpus: 96",
        "    threads_per_core: 2",
        "    host_memory: 2063000MiB",
        "    gpus: 8",
        "  - name: cpu  # cpu1",
        "    arch: aarch64",
        "    # host_memory:  # slurm.conf has no RealMemory",
    ):
        assert f"{line}\n" in text


def test_inventory_lists_the_address_of_each_node_in_order() -> None:
    text = inventory_document(described())
    assert text.endswith(
        "  - {name: gpu-1, host: 10.0.0.1}  # gpu1\n"
        "  - {name: gpu-2, host: 10.0.0.2}  # gpu2\n"
        "  - {name: gpu-3, host: 10.0.0.10}  # gpu10\n"
        "  - {name: cpu-1, host: cpu1}  # cpu1\n"
    )


@pytest.mark.parametrize(
    ("gpu_type", "line"),
    [
        ("", "    gpu: unknown  # the Gres has no type: write the model as docs/models.md names it"),
        ("a100:", "    gpu: a100  # the type of the Gres; one of A100-SXM-40, A100-SXM-80"),
        ("nvidia_b300:", "    gpu: B300-288  # the Gres has the type `nvidia_b300`"),
        ("quadro:", "    gpu: quadro  # the type of the Gres; write the model as docs/models.md names it"),
    ],
)
def test_gpu_model_follows_the_gres_type_or_stays_unknown(gpu_type: str, line: str) -> None:
    assert line in cluster_document(described(gpu_type))


def test_both_forms_of_scontrol_describe_the_same_cluster() -> None:
    node = {
        "address": "10.0.0.1", "architecture": "x86_64", "cores": 48, "sockets": 2, "threads": 2, "features": ["ib", "hbm3"],
        "gres": "gpu:h100:8(S:0-1)", "name": "gpu1", "partitions": ["train", "debug"], "real_memory": 2063000,
        "state": ["MIXED", "NOT_RESPONDING"], "reason": "no IB = broken",
    }  # fmt: skip
    of_text = next(each for each in described().nodes if each.name == "gpu1")
    (of_json,) = described(**{"scontrol show node --json": json.dumps({"nodes": [node]})}).nodes
    assert of_json.kind == of_text.kind
    assert of_json.states == of_text.states == ("MIXED", "NOT_RESPONDING")
    assert (of_json.address, of_json.features, of_json.partitions) == (of_text.address, of_text.features, of_text.partitions)
    # Older formats have lists as text.
    older = {**node, "features": "ib,hbm3", "state": "mixed"}
    (found,) = described(**{"scontrol show node --json": json.dumps({"nodes": [older]})}).nodes
    assert found.features == ("ib", "hbm3")


@pytest.mark.parametrize("answer", ["no json", '{"nodes": [{"name": "gpu1"}]}', "{}"])
def test_text_output_is_used_if_the_json_has_another_format(answer: str) -> None:
    assert described(**{"scontrol show node --json": answer}).nodes == described().nodes


def test_pyxis_is_detected_by_the_help_of_srun() -> None:
    assert "    containers: pyxis\n" in cluster_document(described(**{"srun --help": "  --container-image=[USER@]IMAGE"}))
    assert "    # containers:  # srun lists no pyxis options, and there is no Apptainer here" in cluster_document(described())


def test_apptainer_is_detected_by_its_command() -> None:
    text = cluster_document(described(**{"sh -c command -v apptainer": "/usr/bin/apptainer\n"}))
    assert "    containers: apptainer  # it is on the PATH here" in text


def test_blocks_do_not_prove_nvlink_domains() -> None:
    text = cluster_document(
        described(topology="block", **{"scontrol show topology": "BlockName=b1 BlockIndex=0 Nodes=gpu[1-3]\n"})
    )
    assert "    # topology: block  # Slurm has blocks" in text
    assert "  # topology/block: BlockName=b1 BlockIndex=0 Nodes=gpu[1-3]\n" in text


@pytest.mark.parametrize("gpu_type", ["", "h100:", "a100:", "quadro:"])
def test_written_documents_pass_the_check(gpu_type: str, tmp_path: Path) -> None:
    found = described(gpu_type)
    places = [tmp_path / "cluster.yaml", tmp_path / "inventory.yaml"]
    places[0].write_text(cluster_document(found))
    places[1].write_text(inventory_document(found))
    assert compile_documents(places).problems.errors == 0


def test_slurm_without_an_answer_is_an_error() -> None:
    with pytest.raises(DiscoverError, match="`scontrol show config`: scontrol: unrecognized option"):
        read_slurm(Answers({}))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--login", "a b"], "`--login a b`: expected a host"),
        (["--login", "a", "--jump", "x y"], "`--jump x y`: expected a list of hosts"),
    ],
)
def test_invalid_login_is_a_usage_error(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discover", "slurm", *words, "-o", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
