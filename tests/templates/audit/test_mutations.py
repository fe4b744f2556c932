"""Mistakes planted in the files of a healthy fabric, one at a time: with the cluster file all are found, without it nine in ten."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from headway.cli.read_back import changed_settings, compare, harms
from headway.jobspec.document import Document
from headway.jobspec.problem import Problem
from headway.templates.cluster import reader_of, recognized
from headway.templates.reading import Reading
from tests.templates.audit.fabric import as_yaml, commands, files, planned
from tests.templates.audit.mutations import EOS, FRR, HARMLESS, HOSTS, JOBS, MUTATIONS, NVUE, OPENSM, PODS, SONIC, Mutation

FAMILIES = {"sonic": SONIC, "frr": FRR, "hosts": HOSTS, "jobs": JOBS, "pods": PODS, "opensm": OPENSM, "nvue": NVUE, "eos": EOS}


@cache
def reading(name: str, text: str) -> Reading:
    reader = reader_of(Path(name)) or recognized(text)
    assert reader is not None, name
    return reader(as_yaml(text))


def readings(texts: Mapping[str, str]) -> dict[str, Reading]:
    return {name: reading(name, text) for name, text in texts.items()}


def alone(texts: Mapping[str, str]) -> list[Problem]:
    found = readings(texts)
    return [*harms(found), *compare(found, None)]


@cache
def healthy(os: str) -> Mapping[str, str]:
    return files(os)


def with_cluster(mutation: Mutation, folder: Path) -> list[Problem]:
    """Return the problems that the cluster adds to those of the files alone, below `folder`; files are matched by folder name."""
    texts = {str(folder / name): text for name, text in mutation.apply(healthy(mutation.os)).items()}
    found = readings(texts)
    documents = {name: Document(name, text) for name, text in texts.items()}
    cluster = planned(mutation.os)
    return [*compare(found, cluster.plan), *changed_settings(found, documents, cluster)]


@pytest.mark.parametrize("os", ["sonic", "pods", "opensm", "nvue", "eos"])
def test_healthy_fabric_has_no_problem(os: str, tmp_path: Path) -> None:
    assert alone(healthy(os)) == []
    assert (
        with_cluster(
            Mutation("none", os, {"pods": "job", "opensm": "conf"}.get(os, "switches"), pattern=r"\Z", by="\n"), tmp_path
        )
        == []
    )


def test_nvue_commands_and_yaml_read_the_same() -> None:
    for name, text in healthy("nvue").items():
        if name.endswith("startup.yaml"):
            ours, theirs = (reader(each) for reader in [recognized(text)] if reader for each in (text, as_yaml(text)))
            assert (ours.qos, ours.routing) == (theirs.qos, theirs.routing)
            assert ours.settings.keys() == theirs.settings.keys()
            assert commands("# \n" + as_yaml(text)).splitlines() == text.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_planted_mistakes_are_found(family: str, tmp_path: Path) -> None:
    mutations = FAMILIES[family]
    missed = [each for each in mutations if not alone(each.apply(healthy(each.os)))]
    assert len(missed) <= len(mutations) // 10, [each.name for each in missed]
    for number, each in enumerate(missed):
        assert with_cluster(each, tmp_path / str(number)), each.name


@pytest.mark.parametrize("difference", HARMLESS, ids=lambda each: f"{each.os}: {each.name}")
def test_site_specific_settings_are_not_errors(difference: Mutation, tmp_path: Path) -> None:
    found = [*alone(difference.apply(healthy(difference.os))), *with_cluster(difference, tmp_path)]
    assert [problem.message for problem in found if problem.is_error] == []


def test_switch_connected_only_to_hosts_needs_no_neighbor() -> None:
    port = "interface Ethernet{0}/1\n   description h100-{0} mlx5_0\n   no switchport\n   ip address 10.10.0.{1}/31\n!\n"
    networks = "".join(f"   network 10.10.0.{2 * cage}/31\n" for cage in (1, 2))
    text = "".join(("hostname rails-leaf-1\n!\n", *(port.format(cage, 2 * cage) for cage in (1, 2)), "ip routing\n!\n"))
    text += f"router bgp 4200000001\n{networks}!\nend\n"
    uplink = "interface Ethernet33/1\n   description rails-spine-1 Ethernet1/1\n   no switchport\n   ipv6 enable\n!\nip routing"
    assert "HW833" not in codes(alone({"rails-leaf-1/startup-config": text}))
    assert "HW833" in codes(alone({"rails-leaf-1/startup-config": text.replace("ip routing", uplink)}))


def test_mutations_are_numerous_and_have_unique_names() -> None:
    assert len(MUTATIONS) >= 200
    assert len({(each.os, each.at, each.name) for each in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.slow
def test_most_problems_have_the_line_of_their_setting() -> None:
    with_line, count = 0, 0
    for each in (*NVUE, *EOS, *FRR):
        # Problems of HW602 concern all ports of a file, not one line.
        problems = [problem for problem in alone(each.apply(healthy(each.os))) if problem.code != "HW602"]
        count += len(problems)
        with_line += sum(problem.span is not None for problem in problems)
    assert count > with_line > count * 3 // 4


def codes(problems: Iterable[Problem]) -> set[str]:
    return {problem.code for problem in problems}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("kmin above kmax, everywhere", "HW801"),
        ("thresholds in kilobytes", "HW802"),
        ("drop probability 0", "HW803"),
        ("ECN off", "HW804"),
        ("ECN on the wrong queue", "HW805"),
        ("PFC priority pauses another queue", "HW806"),
        ("lossy queue for the lossless traffic", "HW807"),
        ("cable 0 m", "HW808"),
        ("global pause", "HW809"),
        ("watchdog off", "HW810"),
        ("watchdog shorter than its poll", "HW811"),
        ("PFC for one priority more", "HW812"),
        ("egress dynamic threshold -8", "HW813"),
        ("egress pool of one byte", "HW814"),
        ("scheduler with 1 %", "HW815"),
        ("port without a map of DSCP", "HW816"),
        ("ACL that drops RoCE", "HW817"),
        ("MTU 1500 at one end", "HW820"),
        ("speed of one end", "HW821"),
        ("FEC off everywhere", "HW822"),
        ("port shut", "HW823"),
        ("lanes of another port", "HW824"),
        ("router ID of another leaf", "HW825"),
        ("addresses of the rails swapped", "HW826"),
        ("AS number of another leaf", "HW830"),
        ("hold time 180 s without BFD", "HW832"),
        ("all sessions shut", "HW833"),
        ("one path", "HW834"),
        ("hash without ports", "HW835"),
        ("route map that denies all", "HW836"),
        ("unused remote AS", "HW837"),
        ("no network announced", "HW838"),
        ("router advertisements off", "HW839"),
        ("hold time 180 s without BFD", "HW840"),
        ("BFD of 10 ms", "HW841"),
        ("slow reconnect", "HW842"),
        ("scheduler that does not exist", "HW845"),
        ("HwSKU of another platform", "HW846"),
        ("dynamic threshold of one switch", "HW847"),
        ("strict reverse-path filter", "HW850"),
        ("one table for two rails", "HW851"),
        ("receivers that do not answer marks", "HW852"),
        ("misspelt variable", "HW860"),
        ("timeout out of range", "HW861"),
        ("GPUDirect off", "HW862"),
        ("GID index 0", "HW863"),
        ("no retries", "HW864"),
        ("adapter missing in the list", "HW865"),
        ("sockets over loopback", "HW866"),
        ("rings across rails", "HW867"),
        ("no locked memory", "HW868"),
        ("engine that loops", "HW870"),
        ("limited members", "HW871"),
    ],
)
def test_each_rule_reports_its_mistake(name: str, code: str) -> None:
    found = [alone(each.apply(healthy(each.os))) for each in MUTATIONS if each.name == name]
    assert any(code in codes(problems) for problems in found)
