"""Tests that a real host, with systemd or without, converges from any state to its intended files, and back."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headway.infra.host import MANIFEST, FileChange, ForeignFileError, HostFile, HostState, HostView, changes
from headway.infra.providers.onprem.converge import clear, converge, look_for
from headway.infra.reach import SshError
from headway.infra.ssh import Ssh, connect

from .hosts import OPERATOR, SshHost, SshHosts
from .test_ssh import reach

pytestmark = pytest.mark.slow

SCRIPT, UNIT, UNIT_FILE, NOTE = "/usr/local/sbin/qos", "qos.service", "/etc/systemd/system/qos.service", "/etc/of/headway/note"
RAN = "/var/lib/ran"
SERVICE = f"""[Unit]
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={SCRIPT}
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(params=["n1", "n3"], ids=["without-systemd", "with-systemd"])
def host(request: pytest.FixtureRequest, ssh_hosts: SshHosts) -> Iterator[SshHost]:
    """A host without systemd and one with it. Asserts afterwards that it is as before."""
    yield from clean(ssh_hosts, request.param)


@pytest.fixture
def live_host(ssh_hosts: SshHosts) -> Iterator[SshHost]:
    """The host with systemd."""
    yield from clean(ssh_hosts, "n3")


def clean(hosts: SshHosts, name: str) -> Iterator[SshHost]:
    host = hosts.hosts[name]
    before = host.listing()
    yield host
    with connect(reach(hosts, name)) as ssh:
        clear(ssh, "lab")
    host.run("rm", "-f", RAN)
    assert host.listing() == before


def wanted(hosts: SshHosts, host: SshHost, script: str = f"date >>{RAN}", user: str = "root") -> HostState:
    files = {
        SCRIPT: HostFile(f"#!/bin/sh\n{script}\n", 0o755),
        UNIT_FILE: HostFile(SERVICE, 0o644),
        NOTE: HostFile("for people\n", 0o600),
    }
    return HostState("lab", replace(reach(hosts, host.name), user=user), files, (UNIT,))


def without(state: HostState, *paths: str) -> HostState:
    return replace(state, files={path: file for path, file in state.files.items() if path not in paths})


def brought(state: HostState) -> HostView:
    with connect(state.reach) as ssh:
        return converge(ssh, state)


def found(state: HostState) -> list[FileChange]:
    with connect(state.reach) as ssh:
        return changes(state, look_for(ssh, state))


def runs(host: SshHost) -> int:
    path = host.path(RAN)
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("user", ["root", OPERATOR])
def test_files_are_written_and_the_unit_is_started_under_systemd(ssh_hosts: SshHosts, host: SshHost, user: str) -> None:
    state = wanted(ssh_hosts, host, user=user)
    view = brought(state)
    assert changes(state, view) == []
    assert view.live == host.has_systemd
    assert {path: host.path(path).stat().st_mode & 0o7777 for path in state.files} == {
        SCRIPT: 0o755,
        UNIT_FILE: 0o644,
        NOTE: 0o600,
    }
    assert host.path("/etc/systemd/system/multi-user.target.wants/qos.service").is_symlink()
    assert runs(host) == host.has_systemd
    before = host.listing()
    assert changes(state, brought(state)) == []
    assert host.listing() == before


def test_only_differing_files_are_written_and_their_unit_restarted(ssh_hosts: SshHosts, host: SshHost) -> None:
    state = wanted(ssh_hosts, host)
    brought(state)
    stamps = {path: host.path(path).stat().st_mtime_ns for path in state.files}
    changed = wanted(ssh_hosts, host, script=f"echo changed >>{RAN}")
    assert found(changed) == [FileChange(SCRIPT, "changed")]
    brought(changed)
    assert [path for path in state.files if host.path(path).stat().st_mtime_ns != stamps[path]] == [SCRIPT]
    assert runs(host) == 2 * host.has_systemd
    note = replace(changed, files={**changed.files, NOTE: HostFile("another\n", 0o600)})
    brought(note)
    assert runs(host) == 2 * host.has_systemd


def test_obsolete_files_are_removed_and_other_files_are_kept(ssh_hosts: SshHosts, host: SshHost) -> None:
    state = wanted(ssh_hosts, host)
    brought(state)
    host.run("touch", "/etc/of/somebody-else")
    brought(replace(without(state, UNIT_FILE, NOTE), units=()))
    assert not host.path(UNIT_FILE).exists()
    assert not host.path("/etc/systemd/system/multi-user.target.wants/qos.service").is_symlink()
    assert [path.name for path in host.path("/etc/of").iterdir()] == ["somebody-else"]
    with connect(state.reach) as ssh:
        clear(ssh, "lab")
    assert host.path("/etc/of/somebody-else").exists()
    host.run("rm", "-r", "/etc/of")


def test_manual_changes_to_files_modes_units_and_manifest_are_repaired(ssh_hosts: SshHosts, host: SshHost) -> None:
    state = wanted(ssh_hosts, host)
    brought(state)
    host.path(SCRIPT).write_text("#!/bin/sh\nexit 0\n")
    host.run("chmod", "0644", NOTE)
    host.run("systemctl", "disable", UNIT)
    assert found(state) == sorted([FileChange(SCRIPT, "changed"), FileChange(NOTE, "mode"), FileChange(UNIT, "not enabled")])
    brought(state)
    assert found(state) == []
    first = host.path(MANIFEST).read_text()
    host.path(MANIFEST).unlink()
    assert found(state) == [FileChange(MANIFEST, "unfinished")]
    brought(state)
    assert found(state) == []
    # without the first manifest it is unknown which folders were created for it
    host.path(MANIFEST).write_text(first)


def test_a_file_of_another_owner_is_rejected_before_anything_is_written(ssh_hosts: SshHosts, host: SshHost) -> None:
    host.run("sh", "-c", f"mkdir /usr/local/sbin; echo mine >{SCRIPT}")
    before = host.listing()
    with pytest.raises(ForeignFileError, match=f"^{host.name} .*{SCRIPT} is already there"):
        brought(wanted(ssh_hosts, host))
    assert host.listing() == before
    host.run("rm", "-r", "/usr/local/sbin")


def test_a_file_with_identical_content_is_adopted(ssh_hosts: SshHosts, host: SshHost) -> None:
    state = wanted(ssh_hosts, host)
    host.run("sh", "-c", f'mkdir /usr/local/sbin; printf "#!/bin/sh\\ndate >>{RAN}\\n" >{SCRIPT}')
    assert changes(state, brought(state)) == []
    assert host.path(SCRIPT).stat().st_mode & 0o7777 == 0o755
    with connect(state.reach) as ssh:
        clear(ssh, "lab")
    assert list(host.path("/usr/local/sbin").iterdir()) == []
    host.run("rmdir", "/usr/local/sbin")


def test_a_host_of_another_cluster_is_neither_changed_nor_cleared(ssh_hosts: SshHosts, host: SshHost) -> None:
    state = wanted(ssh_hosts, host)
    brought(state)
    before = host.listing()
    with pytest.raises(ForeignFileError, match="belongs to the cluster `lab`"):
        brought(replace(state, cluster="other"))
    with connect(state.reach) as ssh:
        clear(ssh, "other")
    assert host.listing() == before


@pytest.mark.parametrize("step", range(1, 13))
def test_a_run_interrupted_after_any_step_is_completed_by_the_next(
    ssh_hosts: SshHosts, live_host: SshHost, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    state = wanted(ssh_hosts, live_host)
    taken = cut_after(monkeypatch, step)
    with pytest.raises(ConnectionAbortedError):
        brought(state)
    assert len(taken) == step
    monkeypatch.undo()
    assert found(state) != [] or step == 12
    assert changes(state, brought(state)) == []
    assert runs(live_host) >= 1
    assert live_host.run("systemctl", "is-active", UNIT).stdout == "active\n"


@pytest.mark.parametrize("step", range(1, 8))
def test_a_removal_interrupted_after_any_step_is_completed_by_the_next(
    ssh_hosts: SshHosts, live_host: SshHost, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    state = wanted(ssh_hosts, live_host)
    before = live_host.listing()
    brought(state)
    cut_after(monkeypatch, step)
    with pytest.raises(ConnectionAbortedError), connect(state.reach) as ssh:
        clear(ssh, "lab")
    monkeypatch.undo()
    with connect(state.reach) as ssh:
        clear(ssh, "lab")
    live_host.run("rm", "-f", RAN)
    assert live_host.listing() == before


def cut_after(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Let `step` commands through and then cut the connection; yield the list of those that were let through."""
    taken: list[str] = []
    run = Ssh.run

    def counted(self: Ssh, *words: object, **options: object) -> str:
        if len(taken) == step:
            raise ConnectionAbortedError("cut by the test")
        taken.append(str(words[0]))
        return run(self, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Ssh, "run", counted)
    return taken


def test_a_failing_unit_is_reported_and_started_again_by_the_next_run(ssh_hosts: SshHosts, live_host: SshHost) -> None:
    state = wanted(ssh_hosts, live_host, script=f"echo tried >>{RAN}; exit 1")
    with pytest.raises(SshError, match=r"`systemctl reload-or-restart -- qos.service` exited with 1"):
        brought(state)
    assert found(state) == [FileChange(UNIT, "failed")]
    with pytest.raises(SshError, match=r"`systemctl reload-or-restart -- qos.service` exited with 1"):
        brought(state)
    assert runs(live_host) == 2
    brought(wanted(ssh_hosts, live_host))
    assert found(wanted(ssh_hosts, live_host)) == []


def test_a_change_takes_effect_without_restarting_dependents_of_the_unit(ssh_hosts: SshHosts, live_host: SshHost) -> None:
    """As slurmd requires headway-qos: the jobs of a node must not notice."""
    job = "/etc/systemd/system/job.service"
    unit = SERVICE.replace("[Install]", f"ExecReload={SCRIPT}\n[Install]\nRequiredBy=job.service")
    state = wanted(ssh_hosts, live_host)
    first = replace(state, files={**state.files, UNIT_FILE: HostFile(unit, 0o644)})
    live_host.path(job).write_text("[Service]\nExecStart=/bin/sleep infinity\n")
    try:
        brought(first)
        live_host.run("systemctl", "start", "job.service")
        pid = live_host.run("systemctl", "show", "--property=MainPID", "job.service").stdout
        assert pid != "MainPID=0\n"
        script = HostFile(f"#!/bin/sh\necho changed >>{RAN}\n", 0o755)
        brought(replace(first, files={**first.files, SCRIPT: script}))
        assert runs(live_host) == 2
        assert live_host.run("systemctl", "show", "--property=MainPID", "job.service").stdout == pid
    finally:
        live_host.run("systemctl", "stop", "job.service")
        live_host.path(job).unlink()
        live_host.run("systemctl", "daemon-reload")


def test_an_enabled_unit_starts_when_the_host_boots(ssh_hosts: SshHosts, live_host: SshHost) -> None:
    state = wanted(ssh_hosts, live_host)
    brought(state)
    live_host.power_off()
    live_host.power_on()
    assert live_host.run("systemctl", "is-active", UNIT).stdout == "active\n"
    assert runs(live_host) == 2
    assert found(state) == []
    assert brought(state).units == {UNIT: "enabled"}
