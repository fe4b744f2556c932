"""Changes one switch over SSH: arms its undo, applies, verifies over a new connection, and confirms or undoes.

The part that runs on the switch is `on_switch.sh`, which decides what is true whatever happens to this process and its connections.
"""

import getpass
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headway.infra.push.sessions import SwitchSessions, lost, read_sessions
from headway.infra.reach import HostCommandError, Reach, SshError, from_folder
from headway.infra.ssh import Ssh, as_ssh_would, connect
from headway.jobspec.notation import counted
from headway.jobspec.plan import SwitchPlan
from headway.templates.reading import NeighborView
from headway.templates.switches.frr.change import change, reload_text
from headway.templates.switches.frr.options import SwitchLogin
from headway.templates.switches.frr.read import read

SAVED, BEFORE = "/etc/frr/frr.conf", "/etc/frr/frr.conf.before-push"
FOLDER = "/run/headway-push"
_SCRIPT = Path(__file__).with_name("on_switch.sh")
_AT_ONCE = 32
# Longer than on_switch.sh takes at most: a reload after another one, and an undo with all of its attempts.
_RELOAD_S, _UNDO_S = 300.0, 900.0
_POLL_S = 1.0
# How often, and after which pause, a switch is tried again before its own undo is left to it.
_ATTEMPTS, _PAUSE_S = 5, 3.0
# The part of the time until the undo that is kept for the confirmation.
_MARGIN_S = 10.0

Report = Callable[[str], None]


class PushError(Exception):
    """A switch cannot be changed, and was not; the message names it and the reason."""


class _UnverifiedError(Exception):
    """The switch is not as it should be; the message names the differences."""


class PushState(StrEnum):
    """The result for a switch."""

    APPLIED = "applied"
    UNDONE = "undone"
    UNDOING = "undoing"
    """The switch did not answer any more: its undo fires by itself."""
    FAILED = "failed"
    """The undo did not bring the old configuration back."""


class PushOutcome(Struct, frozen=True):
    """The result for a switch, and the reason for any but `applied`."""

    state: PushState
    reason: str = ""


class PushTimes(Struct, frozen=True):
    """Seconds: until an unconfirmed switch undoes, until all of its sessions must be back, and for which they must last."""

    undo_s: int
    settle_s: float
    last_s: float


class EarlierPush(Struct, frozen=True):
    """A push that a switch is in: its state, the seconds until its undo, who started it, and whether a process of it lives."""

    state: str
    left_s: int
    by: str
    is_alive: bool


class SwitchReading(Struct, frozen=True):
    """The present state of a switch: the name of the host, what FRR runs, `frr.conf` (None without one), its sessions, an earlier push, and
    in `obstacle` what is missing for a push."""

    host: str
    running: str
    saved: str | None
    sessions: SwitchSessions
    earlier: EarlierPush | None = None
    obstacle: str | None = None


class FrrSwitch:
    """A switch over an SSH connection. Every method raises SshError; HostCommandError means that the switch has answered."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh

    def look(self) -> SwitchReading:
        """Return the present state of the switch."""
        found = dict(_fields(self._call("look")))
        earlier = _earlier(found)
        obstacle = f"{found['without']} is missing; install it" if "without" in found else None
        if "split" in found:
            obstacle = f"{SAVED}: FRR has a file for each daemon here (`no service integrated-vtysh-config`)"
        if obstacle is not None and obstacle.startswith("vtysh"):
            return SwitchReading(found["host"], "", None, read_sessions("", "", ""), earlier, obstacle)
        return SwitchReading(found["host"], self.running(), self._ssh.read(SAVED), self.sessions(), earlier, obstacle)

    def earlier(self) -> EarlierPush | None:
        """Return the push that the switch is in, also if FRR does not answer."""
        return _earlier(dict(_fields(self._call("look"))))

    def running(self) -> str:
        """Return the running configuration."""
        return self._vtysh("show running-config no-header")

    def sessions(self) -> SwitchSessions:
        """Return the sessions and the number of routes."""
        shown = ("show bgp summary json", "show bfd peers json", "show ip route summary json")
        return read_sessions(*(self._vtysh(each, may_fail=True) for each in shown))

    def arm(self, text: str, running: str, undo_s: int) -> None:
        """Start the undo, and leave `text` on the switch for `apply`. Fails if the switch no longer runs `running`."""
        file = text.encode()
        sent = file + reload_text(running, text).encode()
        sums = [hashlib.sha256(each).hexdigest() for each in (sent, running.encode())]
        self._call("arm", str(undo_s), _whoami(), sums[0], str(len(file)), sums[1], _SCRIPT.read_text(), stdin=sent)

    def apply(self, undo_s: int) -> None:
        """Bring FRR to the new configuration, also if the connection is lost. Raises SshError if it takes longer than the undo waits."""
        self._call("apply", timeout_s=min(_RELOAD_S, undo_s))

    def confirm(self) -> None:
        """Write `frr.conf` and end the undo; fails if the undo was first."""
        self._call("confirm")

    def undo(self) -> None:
        """Bring the old configuration back now."""
        self._call("undo", timeout_s=_UNDO_S)

    def recover(self) -> None:
        """Undo a push whose processes have ended, and remove what is left of it."""
        self._call("recover", timeout_s=_UNDO_S)

    def _vtysh(self, command: str, may_fail: bool = False) -> str:
        try:
            # Without this the history of the person who logs in next has a line for each look.
            return self._ssh.run(["env", "VTYSH_HISTFILE=/dev/null", "vtysh", "-c", command])
        except HostCommandError:
            if may_fail:
                return ""
            raise

    def _call(self, *words: str, stdin: bytes = b"", timeout_s: float = 60.0) -> str:
        return self._ssh.run(["sh", "-c", _SCRIPT.read_text(), "headway-push", *words], stdin=stdin, timeout_s=timeout_s)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, value


def _earlier(found: Mapping[str, str]) -> EarlierPush | None:
    if "push" not in found:
        return None
    return EarlierPush(found["push"], int(found.get("left", 0)), found.get("by", ""), "watched" not in found)


def _whoami() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def reach_of(switch: SwitchPlan, login: SwitchLogin | None, folder: Path) -> Reach:
    """Return how ssh would reach the management port of a switch, whose address the plan has. Paths count from `folder`, that of the
    cluster's document. Raises SshError for an unreadable ~/.ssh/config."""
    given = login or SwitchLogin()
    if switch.host is None:
        raise ValueError(f"no inventory has the address of {switch.name}")
    identity, known_hosts = (from_folder(folder, path) for path in (given.identity, given.known_hosts))
    named = Reach(switch.name, switch.host, switch.ssh_port, given.user, identity, known_hosts, as_ssh=True)
    return replace(as_ssh_would(switch.host, named, given.jump), name=switch.name)


def look_at_all(reaches: Sequence[Reach]) -> list[SwitchReading | SshError]:
    """Return the present state of each switch, or why it cannot be reached; of all at once."""

    def one(reach: Reach) -> SwitchReading | SshError:
        try:
            return look(reach)
        except SshError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, reaches))


def look(reach: Reach) -> SwitchReading:
    """Return the present state of the switch. Raises SshError."""
    with connect(reach) as ssh:
        return FrrSwitch(ssh).look()


def recover(reach: Reach) -> None:
    """End a push whose processes on the switch have ended: its undo. Raises SshError."""
    with connect(reach) as ssh:
        FrrSwitch(ssh).recover()


def losses(before: SwitchSessions, after: SwitchSessions, text: str) -> list[str]:
    """Return the sessions and routes that a switch with this configuration has lost between two moments, in words."""
    neighbors = _neighbors(text)
    bgp = {name for name, neighbor in neighbors.items() if neighbor.is_up}
    return lost(before, after, bgp, {name for name in bgp if neighbors[name].bfd})


def _neighbors(text: str) -> Mapping[str, NeighborView]:
    device = read(text).device
    bgp = None if device is None else device.bgp
    return {} if bgp is None else bgp.neighbors or {}


# --- one switch from the old to the new configuration -----------------------------------------------------------------


def push(reach: Reach, text: str, before: SwitchReading, times: PushTimes, report: Report) -> PushOutcome:
    """Bring the switch from what `before` has to `text`, or back. Raises PushError if nothing was changed."""
    report(f"keeping the running configuration, with an undo in {times.undo_s} s")
    until = time.monotonic() + times.undo_s
    is_armed = False
    try:
        with connect(reach) as ssh:
            switch = FrrSwitch(ssh)
            switch.arm(text, before.running, times.undo_s)
            is_armed = True
            report("applying")
            switch.apply(times.undo_s)
        report("verifying over a new connection")
        with connect(reach) as ssh:
            switch = FrrSwitch(ssh)
            _verify(switch, text, before.sessions, times, until - _MARGIN_S)
            report("confirming")
            switch.confirm()
    except (SshError, _UnverifiedError) as error:
        if not is_armed:
            place = f"{reach}: " if isinstance(error, HostCommandError) else ""
            raise PushError(f"nothing was changed: {place}{_reason(error)}") from error
        return _rescue(reach, text, before, _reason(error), until, report)
    except KeyboardInterrupt:
        if not is_armed:
            raise
        return _rescue(reach, text, before, "you interrupted it", until, report)
    return PushOutcome(PushState.APPLIED)


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, HostCommandError) else str(error)


def _verify(switch: FrrSwitch, text: str, before: SwitchSessions, times: PushTimes, latest: float) -> None:
    """Return when the switch runs `text` and all sessions have lasted. Raises _UnverifiedError when the time is over, SshError."""
    until = min(time.monotonic() + times.settle_s + times.last_s, latest)
    good_since: float | None = None
    while True:
        problems = _problems(switch, text, before)
        now = time.monotonic()
        if problems:
            good_since = None
        elif good_since is None:
            good_since = now
        if good_since is not None and now - good_since >= times.last_s:
            return
        if now > until:
            raise _UnverifiedError("; ".join(problems) or f"its sessions have not lasted for {times.last_s:g} s")
        time.sleep(_POLL_S)


def _problems(switch: FrrSwitch, text: str, before: SwitchSessions) -> list[str]:
    left = change(switch.running(), text)
    found = [f"it runs `{line}`, which is not rendered" for line in left.removed]
    found += [f"it does not run `{line}`" for line in left.added]
    shown = found[:3] + ([f"{counted(len(found) - 3, 'further line')} differ"] if len(found) > 3 else [])
    return shown + losses(before, switch.sessions(), text)


def _rescue(reach: Reach, text: str, before: SwitchReading, reason: str, until: float, report: Report) -> PushOutcome:
    """Undo the push now if the switch can be reached, and return how it ended."""
    report("undoing")
    for _ in range(_ATTEMPTS):
        try:
            with connect(reach) as ssh:
                switch = FrrSwitch(ssh)
                outcome = _ended(switch, text, before, reason)
                if outcome is None:
                    with suppress(HostCommandError):
                        # It may have failed, or the switch's own was first: the next look shows it.
                        switch.undo()
                    outcome = _ended(switch, text, before, reason)
                if outcome is not None:
                    return outcome
        except SshError as error:
            reason = reason if str(error) in reason else f"{reason}; {error}"
        time.sleep(_PAUSE_S)
    left_s = max(0, round(until - time.monotonic()))
    when = f"within {left_s} s" if left_s else "now"
    return PushOutcome(PushState.UNDOING, f"{reason}; the switch brings its old configuration back by itself {when}")


def _ended(switch: FrrSwitch, text: str, before: SwitchReading, reason: str) -> PushOutcome | None:
    """Return how the push has ended; None while its undo is armed or at work."""
    earlier = switch.earlier()
    if earlier is not None:
        failed = f"{reason}; the undo failed: the old configuration is {FOLDER}/old/frr.conf on the switch"
        return PushOutcome(PushState.FAILED, failed) if earlier.state == "failed" else None
    now = switch.look()
    # The answer to the confirmation may have been lost.
    if not change(now.running, text) and now.saved == text:
        return PushOutcome(PushState.APPLIED)
    if not change(now.running, before.running):
        return PushOutcome(PushState.UNDONE, reason)
    return PushOutcome(PushState.FAILED, f"{reason}; the switch runs neither the old nor the new configuration")
