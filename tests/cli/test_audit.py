"""`headway audit` and `headway check` read files back and find any single changed number, at its line if it has one."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.jobspec.problem import Severity
from headway.templates.cluster import reader_of
from headway.templates.kind import of_plan
from headway.templates.reading import Setting
from headway.templates.switches import SWITCHES

STORY = Path(__file__).parents[2] / "examples" / "two-node-roce"
RENDERED = STORY / "rendered"
CLUSTER = str(STORY / "slurm-cluster.yaml")
TREE = "two-roce-nodes"

# One file of each kind: the four that are rendered from one QoS object.
ARTIFACTS = {
    "nccl": f"small-llama/{TREE}/slurm/job.sbatch",
    "host": f"{TREE}/hosts/h100-1/usr/local/sbin/headway-qos",
    "sonic": f"{TREE}/switches/rails-leaf-1/config_db.json",
    "frr": f"{TREE}/switches/rails-leaf-1/frr/frr.conf",
}
# Variables of a job's environment that the cluster decides; the job sets the others.
CLUSTERS_OWN = re.compile(r"NCCL_(IB|NET|SOCKET|CROSS_NIC)")


def settings(path: str) -> dict[str, Setting]:
    reader = reader_of(Path(path))
    assert reader is not None
    found = reader((RENDERED / path).read_text()).settings
    return {key: setting for key, setting in found.items() if path != ARTIFACTS["nccl"] or CLUSTERS_OWN.match(key)}


def mutations(kind: str) -> Iterator[tuple[str, str]]:
    """Yield every setting of the artifact, with the whole text in which only this setting differs."""
    path = ARTIFACTS[kind]
    text = (RENDERED / path).read_text()
    for key, setting in settings(path).items():
        lines = text.split("\n")
        line = lines[setting.line - 1]
        changed = _changed(line, key, setting.value)
        assert changed != line, (key, setting, line)
        lines[setting.line - 1] = changed
        yield key, "\n".join(lines)


def _changed(line: str, key: str, value: str) -> str:
    """Return the line with another value; a setting without a value gets another name."""
    if not value or value not in line:
        return re.sub(r"[A-Za-z0-9](?=\W*$)", lambda last: "1" if last[0] != "1" else "2", line)
    start = line.rindex(value) if "|" in key or key.startswith("NCCL") else line.index(value)
    other = {"on": "off", "off": "on", "true": "false", "up": "down"}.get(value) or _other(value)
    return line[:start] + other + line[start + len(value) :]


def _other(value: str) -> str:
    """Return a similar value: the last digit plus five (plus one would keep a traffic class's DSCP), or one more letter."""
    last = re.search(r"\d(?=\D*$)", value)
    return value + "x" if last is None else f"{value[: last.start()]}{(int(last[0]) + 5) % 10}{value[last.end() :]}"


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    shutil.copytree(RENDERED, tmp_path / "rendered")
    return tmp_path / "rendered"


def audit(*words: str | Path) -> int:
    return main(["audit", *map(str, words)])


@pytest.mark.slow
def test_committed_files_agree_with_each_other_and_the_cluster_file(capsys: pytest.CaptureFixture[str]) -> None:
    folders = (RENDERED / TREE, RENDERED / "small-llama" / TREE)
    assert audit(*folders) == 0
    assert audit(*folders, "--cluster", CLUSTER) == 0
    assert capsys.readouterr().out == "15 files: no problems\n" * 2


@pytest.mark.slow
@pytest.mark.parametrize("quarter", [0, *(pytest.param(each, marks=pytest.mark.variant) for each in (1, 2, 3))])
@pytest.mark.parametrize("kind", ARTIFACTS)
def test_every_changed_value_is_found_at_its_line_unless_the_site_sets_it(
    kind: str, quarter: int, rendered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rendered / ARTIFACTS[kind]
    missed, judged = [], []
    judge = SWITCHES[kind].judge if kind in SWITCHES else of_plan
    # The rows of one port represent those of the others, which differ only in their numbers.
    alike = {re.sub(r"Ethernet\d+", "port", key): (key, text) for key, text in mutations(kind)}
    for key, text in list(alike.values())[quarter::4]:
        file.write_text(text)
        code = audit(file, "--cluster", CLUSTER)
        out = capsys.readouterr().out
        severity = judge(key)
        judged.append(severity)
        is_told = f"--> {file}" in out
        # A job may have other values of settings that the cluster file does not decide.
        is_free = key in OF_THE_JOB
        # A site's own setting, such as a description, may still disagree with another file.
        is_wrong = not is_told or (code == 1) != (severity is Severity.ERROR and not is_free)
        if severity is not None and is_wrong:
            missed.append(key)
    assert missed == []
    assert judged.count(Severity.ERROR) >= 0.7 * len(judged)
    assert len(alike) >= {"nccl": 6, "host": 10, "sonic": 150, "frr": 30}[kind]


OF_THE_JOB = ("NCCL_IB_QPS_PER_CONNECTION",)
CHAIN = {
    "nccl": r"NCCL_IB_TC$",
    "host": r"dscp-prio|prio-pfc|default_roce_tos|cnp|enable",
    "sonic": r"^(DSCP_TO_TC_MAP|TC_TO_QUEUE_MAP|TC_TO_PRIORITY_GROUP_MAP|WRED_PROFILE\|.*(green|ecn)|.*pfc_enable)",
    # config_db.json has no setting for paths.
    "frr": r"router-id",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARTIFACTS)
def test_changed_link_of_the_chain_is_found_without_the_cluster_file(
    kind: str, rendered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rendered / ARTIFACTS[kind]
    folders = (rendered / TREE, rendered / "small-llama" / TREE)
    chain = [(key, text) for key, text in mutations(kind) if re.search(CHAIN[kind], key)]
    missed = []
    for key, text in chain:
        file.write_text(text)
        if audit(*folders) != 1:
            missed.append(key)
        capsys.readouterr()
    assert missed == []
    assert len(chain) >= 1


@pytest.mark.slow
def test_check_reads_the_committed_files_next_to_the_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = tmp_path / "story"
    shutil.copytree(STORY, story)
    assert main(["check", str(story)]) == 0
    capsys.readouterr()
    leaf = story / "rendered" / TREE / "switches/rails-leaf-2/config_db.json"
    data = json.loads(leaf.read_text())
    (name,) = data["DSCP_TO_TC_MAP"]
    data["DSCP_TO_TC_MAP"][name]["26"] = "0"
    leaf.write_text(json.dumps(data))
    assert main(["check", str(story)]) == 1
    out = capsys.readouterr().out
    ports = "Ethernet0, Ethernet8, Ethernet256, Ethernet264"
    assert f"error[HW602]: {ports}: the queue of DSCP 26 is 0, but 3 in the cluster file\n  --> {leaf}\n" in out
    assert main(["check", str(story / "job.yaml")]) == 0


def test_a_kind_is_recognized_by_its_content_or_by_its_prefix(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = rendered / "running"
    (rendered / ARTIFACTS["sonic"]).rename(odd)
    assert audit(odd) == 0
    assert audit(f"sonic:{odd}") == 0
    assert audit(f"frr:{odd}") == 1
    odd.write_text("nothing of interest\n")
    capsys.readouterr()
    assert audit(odd) == 1
    assert "error[HW604]: its kind cannot be told from its name or content" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"PORT": 3}', ""])
def test_unreadable_file_is_one_problem(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config_db.json").write_text(content)
    assert audit(tmp_path / "config_db.json") == 1
    out = capsys.readouterr().out
    assert out.count("error[HW604]: it cannot be read: ") == 1
    assert "--> " in out


def test_audit_without_a_file_is_a_usage_error(tmp_path: Path) -> None:
    assert audit(tmp_path) == 2


def test_a_missing_file_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path / "frr.conf") == 1
    assert "there is no such file" in capsys.readouterr().out


def test_check_reads_the_variables_of_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = tmp_path / "story"
    shutil.copytree(STORY, story)
    manifest = story / "rendered/small-llama/two-roce-pods/kubernetes/job.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace('value: "106"', 'value: "136"'))
    assert manifest.read_text() != text
    assert main(["check", str(story / "job.yaml")]) == 1
    out = capsys.readouterr().out
    assert f"the DSCP that marks collectives is 34, but 26 in the cluster file\n  --> {manifest}\n" in out


def test_audit_recognizes_a_manifest_by_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "training.yml"
    text = (RENDERED / "small-llama/two-roce-pods/kubernetes/job.yaml").read_text()
    manifest.write_text(text.replace('value: "106"', 'value: "136"'))
    cluster = str(STORY / "kubernetes-cluster.yaml")
    assert audit(manifest, "--cluster", cluster) == 1
    assert "the DSCP that marks collectives is 34, but 26 in the cluster file" in capsys.readouterr().out
    manifest.write_text(text.replace("NCCL_", "OTHER_"))
    assert audit(manifest, "--cluster", cluster) == 1
    assert "HW604" in capsys.readouterr().out


def test_different_ecn_bits_of_a_traffic_class_are_only_a_warning(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rendered / ARTIFACTS["nccl"]
    file.write_text(file.read_text().replace("NCCL_IB_TC=106", "NCCL_IB_TC=104").replace("NCCL_DEBUG=WARN", "NCCL_DEBUG=INFO"))
    assert audit(file, "--cluster", CLUSTER) == 0
    out = capsys.readouterr().out
    assert "warning[HW603]: `NCCL_IB_TC` is 104, and 106 in the cluster file; their two ECN bits differ" in out
    assert out.endswith("1 file: 1 warning\n")


def test_file_is_matched_by_its_device_name_and_reported_without_a_match(
    rendered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = tmp_path / "leaf.json"
    fetched.write_text((rendered / ARTIFACTS["sonic"]).read_text().replace('"speed": "400000"', '"speed": "200000"', 1))
    assert audit(f"sonic:{fetched}", "--cluster", CLUSTER) == 1
    assert "|speed` is 200000, but 400000 in the cluster file" in capsys.readouterr().out
    fetched.write_text(fetched.read_text().replace("rails-leaf-1", "tor17"))
    assert audit(f"sonic:{fetched}", "--cluster", CLUSTER) == 1
    assert "error[HW605]: it has no counterpart among the cluster's rendered files" in capsys.readouterr().out


def test_missing_setting_is_found_like_a_wrong_one(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rendered / ARTIFACTS["host"]
    text = file.read_text()
    for line in ("dcb pfc", "dcb app add", "set_qos mlx5_1", "cma_tos ", "cnp_dscp"):
        file.write_text("\n".join(each for each in text.split("\n") if line not in each))
        assert audit(file, "--cluster", CLUSTER) == 1, line
    capsys.readouterr()


def test_files_without_nccl_variables_in_a_folder_are_skipped(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rendered / "conda.env").write_text("PATH=/opt\n")
    (rendered / "plain.sbatch").write_text("#!/bin/bash\nsrun hostname\n")
    assert audit(rendered / TREE, rendered / "small-llama" / TREE, rendered / "conda.env") == 0
    assert capsys.readouterr().out == "16 files: no problems\n"
    assert audit(rendered) == 0


def test_missing_environment_is_reported_as_a_missing_start_of_the_chain(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(RENDERED / ARTIFACTS["sonic"]) == 0
    assert "No file sets the DSCP of the collectives" in capsys.readouterr().out


def test_script_that_exits_early_differs_from_the_rendered_one(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rendered / ARTIFACTS["host"]
    file.write_text(file.read_text().replace("set -euo pipefail", "exit 0"))
    assert audit(file, "--cluster", CLUSTER) == 1
    assert "which has here `set -euo pipefail`" in capsys.readouterr().out


def test_rdma_job_without_a_dscp_is_found_if_other_senders_have_one(
    rendered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = tmp_path / "job.env"
    env.write_text("NCCL_NET=IB\nNCCL_IB_HCA==mlx5_0\n")
    assert audit(rendered / TREE, env) == 1
    assert "its RDMA traffic has no DSCP (`NCCL_IB_TC`), but other senders have 26" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["NCCL_IB_GID_INDEX=0", "NCCL_IB_DISABLE=1"])
def test_variable_that_contradicts_one_of_the_cluster_is_found(
    rendered: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = rendered / ARTIFACTS["nccl"]
    file.write_text(file.read_text().replace("NCCL_DEBUG=WARN", f"NCCL_DEBUG=WARN {line}"))
    assert audit(file, "--cluster", CLUSTER) == 1
    name, _, value = line.partition("=")
    assert f"error[HW603]: `{name}` is {value}, which goes against `" in capsys.readouterr().out


def test_switch_with_all_sessions_shut_down_is_found(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In FRR, shutting down a peer group shuts down all of its members."""
    file = rendered / ARTIFACTS["frr"]
    shut = " neighbor FABRIC remote-as external\n neighbor FABRIC shutdown\n"
    file.write_text(file.read_text().replace(" neighbor FABRIC remote-as external\n", shut))
    assert audit(file, "--cluster", CLUSTER) == 1
    out = capsys.readouterr().out
    assert "BGP: the neighbors are none, but Ethernet256, Ethernet264 in the cluster file" in out


def test_default_maps_of_sonic_with_a_plain_host_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """qos_config.j2 puts everything else into class and queue 1, which is not an 802.1p priority of an adapter."""
    maps = {"DSCP_TO_TC_MAP": {str(dscp): "3" if dscp == 26 else "1" for dscp in range(64)}}
    same = {str(each): str(each) for each in range(8)}
    maps |= {name: same for name in ("TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE")}  # noqa: C420 (read only)
    wred = {"ecn": "ecn_all", "wred_green_enable": "true", "green_min_threshold": "1048576", "green_max_threshold": "2097152"}
    row = {
        "dscp_to_tc_map": "AZURE",
        "tc_to_queue_map": "AZURE",
        "tc_to_pg_map": "AZURE",
        "pfc_to_queue_map": "AZURE",
        "pfc_enable": "3",
    }
    switch = {
        **{name: {"AZURE": rows} for name, rows in maps.items()},
        "PORT_QOS_MAP": {"Ethernet0": row},
        "WRED_PROFILE": {"AZURE_LOSSLESS": wred},
        "QUEUE": {"Ethernet0|3": {"wred_profile": "AZURE_LOSSLESS"}},
    }
    (tmp_path / "config_db.json").write_text(json.dumps(switch))
    (tmp_path / "host.sh").write_text("mlnx_qos -i eth0 --trust dscp --pfc 0,0,0,1,0,0,0,0\n")
    (tmp_path / "job.env").write_text("NCCL_IB_TC=104\n")
    audit(tmp_path / "config_db.json", f"host:{tmp_path / 'host.sh'}", tmp_path / "job.env")
    assert "of DSCP 0" not in capsys.readouterr().out


def test_gloo_variable_is_compared_if_the_file_sets_it(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rendered / ARTIFACTS["nccl"]
    text = file.read_text()
    file.write_text(text.replace("export GLOO_SOCKET_IFNAME=eth0\n", ""))
    assert audit(file, "--cluster", CLUSTER) == 0
    file.write_text(text.replace("export GLOO_SOCKET_IFNAME=eth0\n", "export GLOO_SOCKET_IFNAME=lo\n"))
    assert audit(file, "--cluster", CLUSTER) == 1
    assert "GLOO_SOCKET_IFNAME" in capsys.readouterr().out
