"""Valid documents have no problems: each of these was once rejected or warned about."""

from pathlib import Path

import pytest

from headway.compile import compile_documents

CLUSTER = """apiVersion: headway/v1alpha1
kind: Cluster
name: iron
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 64, cpus: 96, gpu: H100-SXM-80, gpus: 8, nic: ConnectX-7, nics: [a, b, c, d, e, f, g, h]}]
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /runs, shared: true, capacity: 1.2PiB}]
"""
HERE = """apiVersion: headway/v1alpha1
kind: Cluster
name: here
scheduler: {kind: local}
node_groups: [{name: cpu, count: 1, cpus: 8}]
storage: [{name: runs, kind: posix, path: /tmp/runs, shared: true}]
"""
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: right\n"
MEGATRON = "nodes: 16\nmodel: {layers: 61, hidden: 2048, heads: 16, vocab_size: 32000, ffn_hidden: 8192}\nlayout: {pp: 16}\n"
RIGHT = {
    "a limit that another cluster keeps": (["here", "iron"], "limits: {attempt: {time: 30m}}\nrun: [train.py]\n", []),
    "a variable that the plan sets to the same": (["iron"], "environment: {NCCL_NET: IB}\nrun: [train.py]\n", []),
    "the recorder by its older name": (["iron"], "environment: {TORCH_NCCL_TRACE_BUFFER_SIZE: '1'}\nrun: [train.py]\n", []),
    "uneven stages of Megatron-Core": (
        ["iron"],
        MEGATRON + 'trainer: {kind: script, options: {framework: megatron, argv: [t.py, "{model.layers}", "{layout.pp}"]}}\n',
        ["HW318"],
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_valid_document_has_no_problems(name: str, tmp_path: Path) -> None:
    clusters, job, expected = RIGHT[name]
    (tmp_path / "iron.yaml").write_text(CLUSTER)
    (tmp_path / "here.yaml").write_text(HERE)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(f"{HEAD}cluster: [{', '.join(clusters)}]\n{job}")
    assert [problem.code for problem in compile_documents([tmp_path / "job.yaml"]).problems] == expected
