"""`headway pin` writes inventories next to a cluster's document, and every verb that reads the cluster reads them."""

import json
import re
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import main

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: a, count: A, cpus: 96, gpu: H100-SXM-80, gpus: 2, nics: [mlx5_0, mlx5_1]}
  - {name: b, count: B, cpus: 96, gpu: H100-SXM-80, gpus: 2, nics: [mlx5_0, mlx5_1]}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]
    switches: {leaves: 6, spines: 1, ports: 8, os: [{kind: frr}]}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
"""
NODE = "  - name: {}\n    nics:\n      - {{name: mlx5_0, switch: rails-leaf-{}, port: Ethernet{}}}\n"
NODE += "      - {{name: mlx5_1, switch: rails-leaf-{}, port: Ethernet{}}}\n"
HEAD = "apiVersion: headway/v1alpha1\nkind: Inventory\nname: NAME\ncluster: lab\n"

Write = Callable[[int, int], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the cluster with these numbers of nodes in its two groups."""

    def write(a: int, b: int) -> Path:
        file = tmp_path / "cluster.yaml"
        file.write_text(CLUSTER.replace("A,", f"{a},").replace("B,", f"{b},"))
        return file

    return write


def node(name: str, unit: int, port: int) -> str:
    return NODE.format(name, 2 * unit + 1, 8 * port, 2 * unit + 2, 8 * port)


def places(cluster: Path, capsys: Capture) -> dict[str, list[str]]:
    """Return the ports of the adapters of each node."""
    capsys.readouterr()
    assert main(["plan", str(cluster), "--json"]) == 0
    found: dict[str, list[str]] = {}
    for link in json.loads(capsys.readouterr().out)["links"]:
        if link["address"]:
            found.setdefault(link["b"], []).append(f"{link['a']} {link['a_port']}")
    return found


def test_printed_inventory_lists_every_cable_once(write: Write, capsys: Capture) -> None:
    assert main(["pin", str(write(3, 2))]) == 0
    found = capsys.readouterr()
    nodes = [node("a-1", 0, 0), node("a-2", 0, 1), node("a-3", 0, 2), node("b-1", 0, 3), node("b-2", 1, 0)]
    assert found.out.partition("\n")[2] == HEAD.replace("NAME", "lab") + "nodes:\n" + "".join(nodes)
    assert found.err == "5 nodes pinned, 0 already in inventories\n"


def test_pinning_changes_no_rendered_byte_and_removes_the_warning(write: Write, tmp_path: Path, capsys: Capture) -> None:
    cluster = write(3, 2)
    assert main(["render", str(cluster)]) == 0
    assert "warning[HW524]" in capsys.readouterr().err
    assert main(["pin", str(cluster), "-o", str(tmp_path / "inventory")]) == 0
    assert sorted(path.name for path in (tmp_path / "inventory").iterdir()) == ["lab-unit-1.yaml", "lab-unit-2.yaml"]
    assert main(["render", "--check", str(cluster)]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 0
    # Every such cluster also has the warning that FRR has no queues.
    assert re.findall(r"warning.HW[0-9]+|[0-9]+ documents: .*", capsys.readouterr().out) == [
        "warning[HW513",
        "3 documents: 1 warning",
    ]


@pytest.mark.parametrize("before", ["", "# kept \n", "switches: []\n"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_pinning_after_growth_appends_new_nodes_and_changes_nothing_else(
    write: Write, tmp_path: Path, capsys: Capture, before: str, line_break: str
) -> None:
    file = tmp_path / "seen.yaml"
    old = before + HEAD.replace("NAME", "seen") + "nodes:\n    # of the first unit\n"
    old += "".join(f"  {line}\n" for line in node("b-1", 0, 3).splitlines())
    bytes_before = b"\xef\xbb\xbf" + old.replace("\n", line_break).encode()
    file.write_bytes(bytes_before)
    assert main(["pin", str(write(4, 1)), "-o", str(file)]) == 0
    assert file.read_bytes().startswith(bytes_before)
    known = places(write(4, 1), capsys)
    assert known["b-1"] == ["rails-leaf-1 Ethernet24", "rails-leaf-2 Ethernet24"]
    grown = places(write(9, 2), capsys)
    assert known.items() <= grown.items()
    assert len({place for found in grown.values() for place in found}) == 22


def test_nodes_are_appended_without_a_nodes_list_or_a_final_newline(write: Write, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text(HEAD.replace("NAME", "seen").rstrip())
    assert main(["pin", str(write(1, 1)), "-o", str(file)]) == 0
    assert file.read_text() == HEAD.replace("NAME", "seen") + "nodes:\n" + node("a-1", 0, 0) + node("b-1", 0, 1)
    assert capsys.readouterr().out == f"{file}\n"
    assert main(["pin", str(write(1, 1)), "-o", str(file)]) == 0
    assert capsys.readouterr() == ("", "0 nodes pinned, 2 already in inventories\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "nodes: [{name: b-1}]\n", "cannot be appended to: the text is not YAML"),
        (HEAD + "nodes: []\n", "make `nodes` its last key"),
        (
            HEAD + "nodes:\n  - {name: b-1}\nswitches:\n  - {name: rails-leaf-1}\n",
            "cannot be appended to: `nics` is not a field of `switches[1]`",
        ),
        (HEAD + "nodes:\n  - {name: b-1}\n...\n", "cannot be appended to"),
        (HEAD.replace("lab", "other"), "is an inventory of `other`"),
        (CLUSTER.replace("lab", "other").replace("A,", "1,").replace("B,", "1,"), "already exists: it is not an inventory"),
        ("not: [closed", "already exists: the text is not YAML"),
        (b"\xff", "cannot be read"),
    ],
)
def test_file_that_cannot_be_appended_to_is_unchanged(
    write: Write, tmp_path: Path, capsys: Capture, text: str | bytes, message: str
) -> None:
    file = tmp_path / "seen.yaml"
    content = text if isinstance(text, bytes) else text.replace("NAME", "seen").encode()
    file.write_bytes(content)
    assert main(["pin", str(write(2, 1)), "-o", str(file)]) == 1
    assert message in capsys.readouterr().err
    assert file.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "seen.yaml"]


def test_line_breaks_permissions_and_links_are_preserved(write: Write, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / "seen"
    file.write_bytes(HEAD.replace("NAME", "seen").replace("\n", "\r\n").encode())
    file.chmod(0o444)
    link = tmp_path / "seen.yaml"
    link.symlink_to(file)
    assert main(["pin", str(write(1, 1)), "-o", str(link)]) == 0
    text = HEAD.replace("NAME", "seen") + "nodes:\n" + node("a-1", 0, 0) + node("b-1", 0, 1)
    assert file.read_bytes() == text.replace("\n", "\r\n").encode()
    assert (link.readlink(), stat.S_IMODE(file.stat().st_mode)) == (file, 0o444)


def test_file_at_the_path_of_the_folder_is_rejected(write: Write, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "inventory").write_text("mine")
    assert main(["pin", str(write(1, 1)), "-o", str(tmp_path / "inventory")]) == 1
    assert f"error: {tmp_path / 'inventory' / 'lab-unit-1.yaml'} cannot be written: " in capsys.readouterr().err
    assert (tmp_path / "inventory").read_text() == "mine"


def test_invalid_file_name_is_rejected(write: Write, tmp_path: Path, capsys: Capture) -> None:
    assert main(["pin", str(write(1, 1)), "-o", str(tmp_path / f"{'a' * 300}.yaml")]) == 1
    assert "cannot be read: [Errno 36] File name too long" in capsys.readouterr().err


def test_full_disk_is_reported_and_the_file_is_unchanged(write: Write, tmp_path: Path, capsys: Capture) -> None:
    file, cluster = tmp_path / "seen.yaml", write(2, 1)
    file.write_text(HEAD.replace("NAME", "seen"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        code = main(["pin", str(cluster), "-o", str(file)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert code == 1
    assert f"error: {file} cannot be written: File too large; " in capsys.readouterr().err
    assert file.read_text() == HEAD.replace("NAME", "seen")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "seen.yaml"]


@pytest.mark.parametrize("place", ["elsewhere/seen.yaml", "elsewhere", "inventory/below/seen.yaml"])
def test_output_path_that_is_never_read_is_rejected(write: Write, tmp_path: Path, capsys: Capture, place: str) -> None:
    assert main(["pin", str(write(1, 1)), "-o", str(tmp_path / place)]) == 2
    assert f"{tmp_path / place} would not be read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.yaml"]


def test_cables_missing_in_an_entry_are_listed_for_the_user_to_add(write: Write, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "seen.yaml").write_text(
        HEAD.replace("NAME", "seen") + "nodes:\n  - name: a-1\n    host: 10.0.0.11\n" + node("b-1", 0, 1).rpartition("      -")[0]
    )
    assert main(["pin", str(write(1, 2))]) == 1
    found = capsys.readouterr()
    assert found.out.endswith("nodes:\n" + node("b-2", 0, 2))
    assert found.err.splitlines()[1:] == [
        "error: the inventories are missing these cables; add them:",
        "  a-1: {name: mlx5_0, switch: rails-leaf-1, port: Ethernet0}",
        "  a-1: {name: mlx5_1, switch: rails-leaf-2, port: Ethernet0}",
        "  b-1: {name: mlx5_1, switch: rails-leaf-2, port: Ethernet8}",
    ]


def test_name_that_looks_like_a_number_is_quoted(write: Write, tmp_path: Path, capsys: Capture) -> None:
    cluster = write(1, 1)
    cluster.write_text(cluster.read_text().replace("name: b", 'name: "1e"').replace("mlx5_1", '"017"'))
    assert main(["pin", str(cluster), "-o", str(tmp_path / "seen.yaml")]) == 0
    assert '- name: "1e-1"\n' in (tmp_path / "seen.yaml").read_text()
    assert '{name: "017", switch' in (tmp_path / "seen.yaml").read_text()
    assert main(["check", str(cluster)]) == 0


@pytest.mark.slow
def test_nodes_beyond_the_limit_of_a_file_are_split_into_a_folder(write: Write, tmp_path: Path, capsys: Capture) -> None:
    cluster = write(3500, 3500)
    cluster.write_text(cluster.read_text().replace("ports: 8", "ports: 1024").replace("leaves: 6", "leaves: 28"))
    assert main(["pin", str(cluster), "-o", str(tmp_path / "seen.yaml")]) == 1
    assert "would not be read: the file is larger than the 1048576 bytes" in capsys.readouterr().err
    assert not (tmp_path / "seen.yaml").exists()
    assert main(["pin", str(cluster), "-o", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("lab-unit-*.yaml"))) == 14


def test_inventory_applies_only_to_its_own_cluster(write: Write, tmp_path: Path, capsys: Capture) -> None:
    cluster = write(2, 1)
    untouched = places(cluster, capsys)
    moved = HEAD.replace("NAME", "seen") + "nodes:\n" + node("a-1", 2, 3)
    (tmp_path / "other.yaml").write_text(moved.replace("lab", "other"))
    assert places(cluster, capsys) == untouched
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "unit.yml").write_text(moved)
    assert places(cluster, capsys) == {**untouched, "a-1": ["rails-leaf-5 Ethernet24", "rails-leaf-6 Ethernet24"]}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEAD + "nodes:\n  - {name: a-9}\n", "HW520"),
        (HEAD + "nodes:\n  - {nam: a-1}\n", "HW201"),
        (HEAD + "nodes:\n  - {name: a-1\n", "HW105"),
        (HEAD.replace("cluster: lab\n", ""), "HW202"),
    ],
)
def test_cluster_with_an_invalid_inventory_is_not_planned(
    write: Write, tmp_path: Path, capsys: Capture, text: str, code: str
) -> None:
    (tmp_path / "seen.yaml").write_text(text.replace("NAME", "seen"))
    for verb in (["plan"], ["pin"], ["render"], ["check"]):
        assert main([*verb, str(write(2, 1))]) == 1
        found = capsys.readouterr()
        assert f"error[{code}]" in found.out + found.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "seen.yaml"]


def test_check_of_an_inventory_checks_its_cluster_with_it(write: Write, tmp_path: Path, capsys: Capture) -> None:
    write(2, 1)
    file = tmp_path / "inventory" / "unit.yaml"
    file.parent.mkdir()
    file.write_text(HEAD.replace("NAME", "unit") + "nodes:\n" + node("a-1", 0, 0) + node("a-2", 0, 0))
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().out.count("error[HW521]") == 2
    (tmp_path / "cluster.yaml").unlink()
    assert main(["check", str(file)]) == 1
    assert "error[HW401]" in capsys.readouterr().out


@pytest.mark.parametrize("output", [[], ["-o", "seen.yaml"]])
def test_a_cluster_without_switches_has_nothing_to_pin(write: Write, tmp_path: Path, capsys: Capture, output: list[str]) -> None:
    cluster = write(2, 1)
    cluster.write_text("\n".join(line for line in cluster.read_text().splitlines() if "switches:" not in line))
    assert main(["pin", str(cluster), *[str(tmp_path / word) if word.endswith("yaml") else word for word in output]]) == 1
    assert capsys.readouterr() == ("", "error: `lab` names no `switches`, so it has no cables to pin\n")
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.yaml"]


STRAY = """\
warning[HW401]: no Cluster document called `lap` in the inventory's folder, or above it if that is called `inventory`
  --> {}:4:10
 4 | cluster: lap
   |          ^^^

hint: did you mean `lab`?

"""


@pytest.mark.parametrize("place", ["seen.yaml", "inventory/seen.yaml"])
def test_inventory_without_a_cluster_is_a_warning_if_it_would_be_read(
    write: Write, tmp_path: Path, capsys: Capture, place: str
) -> None:
    cluster, file = write(1, 1), tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEAD.replace("NAME", "seen").replace("lab", "lap"))
    assert main(["check", str(cluster)]) == 0
    assert STRAY.format(file) in capsys.readouterr().out
    assert main(["pin", str(cluster)]) == 0
    assert capsys.readouterr().err == STRAY.format(file) + "2 nodes pinned, 0 already in inventories\n"
    assert main(["check", str(tmp_path)]) == 1
    found = capsys.readouterr().out
    assert STRAY.format(file).replace("warning", "error") in found
    assert found.count("HW401") == 1


def test_inventory_of_another_cluster_in_the_folder_is_not_a_warning(write: Write, tmp_path: Path, capsys: Capture) -> None:
    cluster = write(1, 1)
    (tmp_path / "other.yaml").write_text(cluster.read_text().replace("name: lab", "name: other"))
    (tmp_path / "seen.yaml").write_text(HEAD.replace("NAME", "seen").replace("lab", "other"))
    assert main(["check", str(cluster)]) == 0
    assert "HW401" not in capsys.readouterr().out


def test_inventory_alone_cannot_be_planned(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text(HEAD.replace("NAME", "seen"))
    assert main(["plan", str(file)]) == 1
    assert "error[HW211]: this is an Inventory; expected a TrainingJob or Cluster" in capsys.readouterr().err
