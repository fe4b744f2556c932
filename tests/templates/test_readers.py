"""Foreign scripts, units and manifests are read as the settings that they make; any other text is rejected."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.templates.commands import commands
from headway.templates.hosts import read as hosts
from headway.templates.nccl import read as nccl
from headway.templates.reading import QosView, Reading

MANIFEST = Path(__file__).parents[2] / "examples/two-node-roce/rendered/small-llama/two-roce-pods/kubernetes/job.yaml"
FACTS = frozenset({"priority of DSCP", "PFC of priority"})


def on(*priorities: int) -> dict[int, bool]:
    return {priority: priority in priorities for priority in range(8)}


# --- a script as commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  'c d' \"e f\"'g'\\ h", [("a", "b", "c d", "e fg h")]),
        ("a 1; b 2 && c 3 || d 4 | e 5 & f", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5"), ("f",)]),
        ("if a; then b; else c; fi", [("a",), ("b",), ("c",), ("fi",)]),
        ("a $# ${x#y} z#z # no # more", [("a", "$#", "${x#y}", "z#z")]),
        ("; of systemd\na", [("a",)]),
        ('a "$(b "c d")/e" $((1 << 2)) `f g`', [("a", '$(b "c d")/e', "$((1 << 2))", "`f g`")]),
        ("a \\\n  b\\\nc\r\nd \\", [("a", "bc"), ("d",)]),
        ('a "b\nc', [("a", '"b'), ("c",)]),
        ("a >x 2>&1 <y b", [("a", "b")]),
        ("sudo bash -e -lc 'a \"b c\"; d' name", [("sudo", "bash", "-e", "-lc", 'a "b c"; d', "name"), ("a", "b c"), ("d",)]),
    ],
)
def test_text_is_split_into_commands_as_in_a_shell(text: str, expected: list[tuple[str, ...]]) -> None:
    assert [command.words for command in commands(text)] == expected


def test_word_has_its_line_and_command_its_output_file() -> None:
    one, two, three = commands("#\na \\\n  b >x 2>y\nc 'd' \\\n>>z | e >&2 f\n")
    assert (one.words, one.lines, one.target, one.piped) == (("a", "b"), (2, 3), "x", False)
    assert (two.words, two.lines, two.target, two.piped) == (("c", "d"), (4, 4), "z", False)
    assert (three.words, three.lines, three.target, three.piped) == (("e", "f"), (5, 5), None, True)


# --- variables of NCCL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_IB_TC=104",
        "export A=1 NCCL_IB_TC=104",
        "srun --export=ALL,NCCL_IB_TC=104 python train.py",
        "srun --export ALL,A=1,NCCL_IB_TC=104,B=2 python train.py",
        "#SBATCH --export=ALL,NCCL_IB_TC=104",
        "env A=1 NCCL_IB_TC=104 python train.py",
        "mpirun -np 4 -x A \\\n  -x NCCL_IB_TC=104 \\\n  python train.py",
        "mpirun -genv NCCL_IB_TC 104 ./train",
        "docker run -e NCCL_IB_TC=104 image",
        "docker run --env=NCCL_IB_TC=104 image",
        "apptainer run --env NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_IB_TC=104 image",
        "NCCL_IB_TC=104 NCCL_DEBUG=INFO torchrun train.py",
        "setenv NCCL_IB_TC 104",
        "declare -x NCCL_IB_TC='104'",
        'if true; then export NCCL_IB_TC="104"; fi',
        "srun bash -c 'export NCCL_IB_TC=104; exec python train.py'",
        'Environment="NCCL_IB_TC=104" A=1',
        "NCCL_IB_TC=96\nNCCL_IB_TC=104",
        "NCCL_IB_TC=104 # NCCL_IB_TC=96",
        "NCCL_IB_TC=104\n# NCCL_IB_TC=96\n##SBATCH --export=NCCL_IB_TC=96",
        "NCCL_IB_TC=104\necho NCCL_IB_TC=96\n[[ NCCL_IB_TC=96 ]]",
        "NCCL_IB_TC=96\nunset NCCL_IB_TC\nNCCL_IB_TC=104",
        "NCCL_IB_TC=0150",
        "NCCL_IB_TC=0x68",
        "NCCL_IB_TC=106",
        "NCCL_IB_TC='104 '",
    ],
)
def test_every_way_to_set_the_traffic_class_of_a_job_is_found(text: str) -> None:
    assert nccl.read(text).qos == {"NCCL": QosView(marks={"collectives": 26})}


@pytest.mark.parametrize(
    ("value", "dscp"), [("0104", 17), ("0x60", 24), ("0", 0), ("-1", None), ("08", 0), ("", None), ("high", None), ("360", 26)]
)
def test_traffic_class_is_parsed_as_in_nccl(value: str, dscp: int | None) -> None:
    reading = nccl.read(f"export NCCL_IB_TC={value}\n")
    assert reading.qos["NCCL"].marks == ({} if dscp is None else {"collectives": dscp})
    assert reading.settings["NCCL_IB_TC"].value == value


@pytest.mark.parametrize("value", ["$((26 << 2))", "${TC:-104}", "$TC", "`tc`", "104$X"])
def test_value_computed_by_the_shell_is_a_setting_and_not_a_mark(value: str) -> None:
    reading = nccl.read(f"export A=1 NCCL_IB_TC={value}\n")
    assert reading.settings["NCCL_IB_TC"].value == value
    assert reading.qos["NCCL"].marks == {}


def test_values_have_no_quotes_and_have_their_line() -> None:
    found = nccl.read('A=\'b c\' \\\n  B="d\\"e"\n\nC=f#g\nexport D=  # none\nHCA==mlx5_0,mlx5_1\n').settings
    assert {name: (setting.value, setting.line) for name, setting in found.items()} == {
        "A": ("b c", 1),
        "B": ('d"e', 2),
        "C": ("f#g", 4),
        "D": ("", 5),
        "HCA": ("=mlx5_0,mlx5_1", 6),
    }


@pytest.mark.parametrize("text", ["", "python train.py\n", "# NCCL_IB_TC=96\n", "a=b\n"])
def test_text_without_variables_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 1: "):
        nccl.read(text)


# --- variables in a Kubernetes manifest -------------------------------------------------------------------------------


def container(name: str, *env: str, indent: int = 4) -> str:
    lines = [f"- name: {name}", "  image: x", "  env:", *(f"  {line}" for each in env for line in each.split("\n"))]
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def test_rendered_manifest_is_read_back() -> None:
    text = MANIFEST.read_text()
    reading = nccl.read_manifest(text)
    assert reading.qos == {"NCCL": QosView(marks={"collectives": 26})}
    assert reading.settings["NCCL_SOCKET_IFNAME"].value == "=eth0"
    assert reading.settings["HEADWAY_RESTART"].value == "valueFrom.fieldRef"
    line = text.split("\n")[reading.settings["NCCL_IB_TC"].line - 1]
    assert line.strip() == 'value: "106"'


def test_every_container_of_every_document_is_read() -> None:
    text = (
        "kind: Pod\nspec:\n  initContainers:\n"
        + container("first", "- {name: NCCL_IB_TC, value: 0x68}  # - name: NCCL_IB_TC")
        + "  containers:\n"
        + container("second", "- name: NCCL_DEBUG\n  value: INFO", "- name: NCCL_IB_TC")
        + "---\nkind: Job\n---\nkind: JobSet\nspec:\n  jobs:\n"
        + container("third", "- value: '96'\n  name: NCCL_IB_TC")
    )
    reading = nccl.read_manifest(text)
    assert reading.qos == {
        "NCCL": QosView(marks={"collectives": 24}),
        "NCCL of first": QosView(marks={"collectives": 26}),
    }
    assert {name: (setting.value, setting.line) for name, setting in reading.settings.items()} == {
        "NCCL_IB_TC": ("96", 24),
        "NCCL_DEBUG": ("INFO", 13),
    }


def test_alias_is_resolved() -> None:
    text = "x: &tc {name: NCCL_IB_TC, value: '104'}\ny: {env: &env [*tc]}\nz: [{name: a, env: *env}, {env: *none}]\n"
    assert nccl.read_manifest(text).qos == {"NCCL": QosView(marks={"collectives": 26})}


@pytest.mark.parametrize(
    "value", ["valueFrom: {configMapKeyRef: {name: a, key: b}}", "value: $(TC)", "value: [104]", "values: 1"]
)
def test_value_from_elsewhere_in_a_manifest_is_a_setting_and_not_a_mark(value: str) -> None:
    reading = nccl.read_manifest(f"env:\n- name: NCCL_IB_TC\n  {value}\n")
    assert set(reading.settings) == {"NCCL_IB_TC"}
    assert reading.qos["NCCL"].marks == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("kind: Service\n", 1),
        ("env:\n  A: 1\n", 1),
        ("kind: Job\nenv: [\n\n", 4),
        ("a: b\nenv: {{ .Values.env }}x\n", 2),
        ("a: b\n\x00", 1),
        ("a:\n" + "[" * 200_000, 2),
        ("%YAML 3.0\n---\na", 1),
    ],
)
def test_text_that_is_not_a_manifest_is_rejected_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line}: "):
        nccl.read_manifest(text)


def test_aliases_that_multiply_are_read_once() -> None:
    text = "a0: &a0 [{env: [{name: A, value: b}]}]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
    )
    assert nccl.read_manifest(text).settings["A"].value == "b"


def test_aliases_that_nest_are_read() -> None:
    text = "x: &a0 {env: [{name: A, value: b}]}\n" + "".join(f"x: &a{n} {'[' * 60}*a{n - 1}{']' * 60}\n" for n in range(1, 100))
    assert nccl.read_manifest(text).settings["A"].value == "b"


# --- commands on hosts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "dcb app add dev eth0 dscp-prio 26:3",
        "dcb app replace dev eth0 dscp-prio 48:6 26:3",
        "sudo -n /usr/sbin/dcb -s app add dev eth0 default-prio 0 dscp-prio AF31:3 ethtype-prio 0x800:2",
        "ExecStart=-/usr/sbin/dcb app add dev eth0 dscp-prio 0x1a:3",
        "ExecStart=/bin/sh -c 'dcb app add dev eth0 dscp-prio 26:03 || true'",
        "dcb app add dev eth0 dscp-prio 26:2\ndcb app add dev eth0 \\\n  dscp-prio 26:3",
        "mlnx_qos -i eth0 --trust dscp",
        "mlnx_qos -ieth0 --trust=dscp",
        "sudo mlnx_qos -a --interface=eth0 --trust pcp --dscp2prio set,26,3",
        "mlnx_qos --dscp2prio=set,26,3 --dscp2prio set,48,6 --interface eth0",
        "if ! mlnx_qos -i eth0 --trust dscp; then mlnx_qos -i eth0 --dscp2prio set,26,3; fi",
    ],
)
def test_every_way_to_set_the_priority_of_a_dscp_is_found(command: str) -> None:
    views = hosts.read(f"#!/bin/sh\n{command}\n").qos
    assert views["eth0"].priorities[26] == 3
    assert views.keys() == {"eth0"}
    assert views["eth0"].says == FACTS


@pytest.mark.parametrize(
    ("command", "priorities"),
    [
        ("dcb app flush dev eth0 dscp-prio", {}),
        ("dcb app flush dev eth0", {}),
        ("dcb app flush dev eth0 default-prio", {26: 3, 2: 5}),
        ("dcb app flush dev eth1 dscp-prio", {26: 3, 2: 5}),
        ("dcb app del dev eth0 dscp-prio 2:5", {26: 3}),
        ("mlnx_qos -i eth0 --dscp2prio del,26,3", {26: 0, 2: 5}),
        ("mlnx_qos -i eth0 --trust pcp", {}),
        ("mlnx_qos -i eth0 --trust dscp", {**{dscp: dscp // 8 for dscp in range(64)}, 26: 3, 2: 5}),
        ("# dcb app flush dev eth0 dscp-prio", {26: 3, 2: 5}),
        ("echo dcb app flush dev eth0 dscp-prio", {26: 3, 2: 5}),
    ],
)
def test_priorities_removed_by_a_later_command_are_dropped(command: str, priorities: dict[int, int]) -> None:
    view = hosts.read(f"dcb app add dev eth0 dscp-prio 26:3 2:5\n{command}\n").qos["eth0"]
    assert view.priorities == priorities
    assert view.says == FACTS


@pytest.mark.parametrize(
    ("command", "pfc"),
    [
        ("dcb pfc set dev eth0 prio-pfc all:off 3:on", on(3)),
        ("dcb pfc set dev eth0 prio-pfc 3:on\ndcb pfc set dev eth0 prio-pfc all:off 4:on", on(4)),
        ("dcb pfc set dev eth0 delay 0 prio-pfc 3:on 4:off", {3: True, 4: False}),
        ("dcb pfc set dev eth0 prio-pfc all:on", on(*range(8))),
        ("mlnx_qos -i eth0 --pfc 0,0,0,1,0,0,0,0", on(3)),
        ("mlnx_qos -i eth0 -f 0,0,0,1,0,0,0,0 -p 0,1,2,3,4,5,6,7", on(3)),
        ("ExecStart=/usr/bin/mlnx_qos -i eth0 --pfc=0,0,0,0,1,0,0,0", on(4)),
        ("mlnx_qos -i eth0 --pfc 0,0,0,1,0,0,0,0\ndcb pfc set dev eth0 prio-pfc all:off", on()),
    ],
)
def test_every_way_to_set_pfc_is_found(command: str, pfc: dict[int, bool]) -> None:
    assert hosts.read(command).qos == {"eth0": QosView(pfc=pfc, says=FACTS)}


@pytest.mark.parametrize(
    ("command", "end", "view"),
    [
        ("cma_roce_tos -d mlx5_0 -t 106", "mlx5_0", QosView(marks={"collectives": 26})),
        ("sudo cma_roce_tos -d mlx5_0 -p 1 -t104", "mlx5_0", QosView(marks={"collectives": 26})),
        ("cma_roce_tos -d $dev -t 106", "host", QosView(marks={"collectives": 26})),
        ("echo 106 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class", "mlx5_0", QosView(marks={"collectives": 26})),
        ('echo 106 >"/sys/class/infiniband/$dev/tc/1/traffic_class"', "host", QosView(marks={"collectives": 26})),
        ("cd /sys/class/infiniband/mlx5_0; echo 106 > tc/1/traffic_class", "host", QosView(marks={"collectives": 26})),
        (
            "echo 106 | sudo tee -a /sys/class/infiniband/mlx5_0/tc/1/traffic_class >/dev/null",
            "mlx5_0",
            QosView(marks={"collectives": 26}),
        ),
        (
            "sudo sh -c ' echo 106 > /sys/class/infiniband/mlx5_2/tc/1/traffic_class'",
            "mlx5_2",
            QosView(marks={"collectives": 26}),
        ),
        ("echo 106 > /config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "mlx5_0", QosView(marks={"collectives": 26})),
        ("echo 48 > /sys/class/net/eth0/ecn/roce_np/cnp_dscp", "eth0", QosView(marks={"cnp": 48})),
        ("printf '%s\\n' 48 > $ecn/roce_np/cnp_dscp", "host", QosView(marks={"cnp": 48})),
        ("echo 48 > /sys/kernel/debug/mlx5/0000:10:00.0/cc_params/np_cnp_dscp", "0000:10:00.0", QosView(marks={"cnp": 48})),
        ("echo 6 > /sys/kernel/debug/mlx5/$pci/cc_params/np_cnp_prio", "host", QosView(marks_priority={"cnp": 6})),
        ("echo 6 > /sys/class/net/eth0/ecn/roce_np/cnp_802p_prio", "eth0", QosView(marks_priority={"cnp": 6})),
        (
            "for way in np rp; do :; done; echo 1 > $d/roce_np/enable/3; echo 1 > $d/roce_rp/enable/3",
            "host",
            QosView(reacts={3: True}),
        ),
        ("echo 1 > /sys/class/net/eth0/ecn/roce_np/enable/3", "eth0", QosView(reacts={3: False})),
    ],
)
def test_marks_and_congestion_control_are_found_without_a_class(command: str, end: str, view: QosView) -> None:
    assert hosts.read(command).qos == {end: view}


def test_value_from_a_variable_is_unknown_and_not_missing() -> None:
    text = "dcb app replace dev $dev dscp-prio $dscp:$prio\nmlnx_qos -i eth0 --pfc $PFC --trust dscp\n"
    reading = hosts.read(text)
    assert reading.qos["host"] == QosView(says=frozenset({"PFC of priority"}))
    assert (reading.qos["eth0"].pfc, reading.qos["eth0"].says) == ({}, frozenset({"priority of DSCP"}))
    assert {key: (setting.value, setting.line) for key, setting in reading.settings.items()} == {
        "dscp-prio|$dscp": ("$prio", 1),
        "eth0|prio-pfc|all": ("$PFC", 2),
        "eth0|trust": ("dscp", 2),
    }


def test_script_for_several_adapters_is_read() -> None:
    text = """#!/bin/bash
    for dev in eth0 eth1; do
        mlnx_qos -i "$dev" --trust dscp \\
            --pfc 0,0,0,1,0,0,0,0
        echo 48 > "/sys/class/net/$dev/ecn/roce_np/cnp_dscp"
    done
    mlnx_qos -i eth2 --pfc 0,0,0,0,1,0,0,0
    cma_roce_tos -d mlx5_0 -t 106
    """
    reading = hosts.read(text)
    assert reading.qos == {
        "host": QosView(marks={"cnp": 48}, priorities={dscp: dscp // 8 for dscp in range(64)}, pfc=on(3), says=FACTS),
        "eth2": QosView(pfc=on(4), says=FACTS),
        "mlx5_0": QosView(marks={"collectives": 26}),
    }
    assert (reading.settings["eth2|prio-pfc|4"].value, reading.settings["eth2|prio-pfc|4"].line) == ("1", 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "echo hello\n",
        "ethtool -A eth0 rx off tx off\n",
        "set_qos 'mlx5_0\n",
        "mlnx_qos -i eth0\n",
        "dcb app show dev eth0\n",
        "command -v mlnx_qos dcb\n",
        "# dcb pfc set dev eth0 prio-pfc 3:on\n",
        "echo 5; cat x | tee /sys/class/infiniband/mlx5_0/tc/1/traffic_class\n",
    ],
)
def test_text_that_sets_no_qos_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 1: "):
        hosts.read(text)


# --- any text ---------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *"'\"\\$`#;|&<>(){}=:,/-",
        *("\n", "\r\n", "\\\n", "$((", "${", "--", "- ", "  ", "&a ", "*a ", "\x00", "\ud800", "\u2028", "\u0663"),
        *("sudo ", "sh -c ", "bash -lc ", "ExecStart=", "echo ", "tee ", "export ", "unset ", "--export=", "#SBATCH ", "setenv "),
        *("dcb ", "app ", "add ", "flush ", "dev ", "eth0 ", "dscp-prio ", "pfc set ", "prio-pfc ", "26:3 ", "all:off "),
        *("mlnx_qos ", "-i ", "--trust ", "--pfc ", "--dscp2prio ", "set,26,3 ", "0,0,0,1 ", "cma_roce_tos ", "-d ", "-t "),
        *("> /sys/class/net/eth0/ecn/roce_np/", "cnp_dscp ", "enable/", "tc/1/traffic_class ", "set_qos mlx5_0 ", "if_there "),
        *("NCCL_IB_TC", "=104 ", "0x", "0", "9" * 400, "env: ", "name: ", "value: ", "NCCL_IB_TC\n", "[", "]", "{", "}", "---\n"),
    ]
)
TEXTS = st.lists(WORDS, max_size=30).map("".join) | st.text(max_size=40)


@pytest.mark.slow
@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_rejected(text: str) -> None:
    for read in (hosts.read, nccl.read, nccl.read_manifest):
        reading = Reading({})
        with contextlib.suppress(ValueError):
            reading = read(text)
        assert all(1 <= setting.line <= text.count("\n") + text.count("\r") + 1 for setting in reading.settings.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ['"', "'", '"$(', "$((", "${", "`", "\\", "sh -c ", '"\\"', "a=", "a/", "\\\n", "[", "- ", "{a: ", ";", "#", ">"]
)
def test_reading_time_is_linear_in_the_length_of_a_text(piece: str) -> None:
    """A pattern with backtracking would not end."""
    text = piece * 20_000
    for read in (hosts.read, nccl.read, nccl.read_manifest):
        with contextlib.suppress(ValueError):
            read(text)
