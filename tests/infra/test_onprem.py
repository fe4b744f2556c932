"""A cluster's rendered files become the desired state of its hosts."""

from pathlib import Path, PurePosixPath

import pytest

from headway.infra.host import HostFile
from headway.infra.providers import PROVIDERS
from headway.infra.providers.onprem.hosts import host_states, reach
from headway.infra.providers.onprem.options import OnpremOptions
from headway.infra.providers.onprem.provider import differences, files_on, props_of, put_by, state_of
from headway.infra.reach import Reach
from headway.jobspec.plan import ClusterPlan, NodePlan
from headway.templates.kind import Files

UNIT_TEXT = "[Unit]\n[Install]\nWantedBy=multi-user.target\n"
UNIT, TIMER, SCRIPT = "/etc/systemd/system/qos.service", "/etc/systemd/system/static.service", "/usr/local/sbin/qos"


def plan(*hosts: str | None) -> ClusterPlan:
    nodes = tuple(NodePlan(f"gpu-{index + 1}", "gpu", index, host, 22, ()) for index, host in enumerate(hosts))
    return ClusterPlan("lab", "0", "local", "onprem", (), nodes, fabrics=(), switches=(), links=(), storage=())


def files(node: str) -> Files:
    texts = {UNIT: UNIT_TEXT, TIMER: "[Unit]\n# no [Install]\n", SCRIPT: "#!/bin/sh\n"}
    return {PurePosixPath(f"lab/hosts/{node}{path}"): text for path, text in texts.items()}


def test_table_of_providers_lists_every_folder_next_to_it() -> None:
    folders = {path.parent.name for path in (Path(__file__).parents[2] / "infra/providers").glob("*/__init__.py")}
    assert set(PROVIDERS) == folders


def test_node_gets_its_files_at_their_paths_and_one_without_is_omitted() -> None:
    rendered = {**files("gpu-1"), PurePosixPath("lab/plan.json"): "{}", PurePosixPath("lab/hosts/gpu-10/etc/x"): ""}
    (state,) = host_states(OnpremOptions(user="admin"), plan("10.0.0.1", "10.0.0.2"), rendered, Path("/c"))
    assert state.reach == Reach("gpu-1", "10.0.0.1", 22, "admin")
    assert state.files == {
        UNIT: HostFile(UNIT_TEXT, 0o644),
        TIMER: HostFile("[Unit]\n# no [Install]\n", 0o644),
        SCRIPT: HostFile("#!/bin/sh\n", 0o755),
    }
    assert state.units == ("qos.service",)


def test_node_with_files_and_without_an_address_is_reported() -> None:
    with pytest.raises(ValueError, match="files for `gpu-2`, and neither `hosts` of the group `gpu` nor an inventory"):
        host_states(OnpremOptions(), plan("10.0.0.1", None), {**files("gpu-1"), **files("gpu-2")}, Path())


def test_nodes_with_the_same_address_are_reported() -> None:
    with pytest.raises(ValueError, match=r"`gpu-1` and `gpu-2` are both at 10\.0\.0\.1:22"):
        host_states(OnpremOptions(), plan("10.0.0.1", "10.0.0.1"), {**files("gpu-1"), **files("gpu-2")}, Path())


def test_manifest_path_in_the_tree_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"/etc/headway/managed\.json"):
        host_states(OnpremOptions(), plan("h"), {PurePosixPath("lab/hosts/gpu-1/etc/headway/managed.json"): ""}, Path())


def test_key_paths_are_relative_to_the_document_except_in_the_home_folder() -> None:
    found = reach(OnpremOptions(identity="~/.ssh/id", known_hosts="known_hosts"), Path("/clusters/lab"))
    assert (found.identity, found.known_hosts) == ("~/.ssh/id", "/clusters/lab/known_hosts")


def test_state_contains_the_files_of_a_host_but_no_key_paths() -> None:
    options = OnpremOptions(identity="/keys/id", known_hosts="/keys/known")
    (state,) = host_states(options, plan("10.0.0.1"), files("gpu-1"), Path())
    props = props_of(state)
    assert "/keys" not in repr(props)
    # A number comes back from the engine as a float.
    assert state_of({**props, "port": 22.0}).files == state.files


def test_renamed_host_with_the_same_files_is_a_change() -> None:
    (state,) = host_states(OnpremOptions(), plan("10.0.0.1"), files("gpu-1"), Path())
    news = props_of(state)
    manifest = {"cluster": "lab", "files": {}, "folders": [], "units": [], "restart": [], "finished": True}
    manifest["files"] = {path: file.sha256 for path, file in state.files.items()}
    view = {"paths": {path: file.print for path, file in state.files.items()}, "units": {"qos.service": "enabled"}}
    olds = {**news, "view": {**view, "manifest": manifest, "live": False}}
    assert differences(olds, news) == []
    assert [(each.what, each.subject) for each in differences({**olds, "name": "gpu-2"}, news)] == [
        ("renamed", "gpu-1 (root@10.0.0.1:22)")
    ]
    assert [change.what for change in files_on(olds)] == ["extra"] * 3
    assert {change.what for change in put_by(news)} == {"missing", "not enabled"}


def test_only_root_reads_the_netplan_file() -> None:
    rendered = {PurePosixPath("lab/hosts/gpu-1/etc/netplan/90-headway.yaml"): "network: {version: 2}\n"}
    (state,) = host_states(OnpremOptions(), plan("10.0.0.1"), rendered, Path())
    assert {path: file.mode for path, file in state.files.items()} == {"/etc/netplan/90-headway.yaml": 0o600}
