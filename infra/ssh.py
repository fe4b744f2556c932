"""Runs commands and writes files on a host over SSH: host keys are verified, every wait ends, every write is all or nothing."""

import getpass
import hashlib
import logging
import shlex
import socket
import threading
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import NoReturn, Self

import paramiko
from msgspec.structs import replace
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError

from headway.infra.reach import ConnectError, HostCommandError, Reach, SshError

_SSH_PORT = 22
CONNECT_S = 10.0
COMMAND_S = 60.0
USER_CONFIG = "~/.ssh/config"
_MOST_JUMPS = 8
USER_KNOWN_HOSTS, SYSTEM_KNOWN_HOSTS = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"

# A temporary file in the same folder, for a rename. Its name is fixed, so that the next attempt replaces what a cut
# connection leaves; with noclobber the shell creates it exclusively and follows no link. Only a whole text has its
# checksum. sync of coreutils is fsync.
_PUT = """
set -eu
path=$1 mode=$2 sum=$3
new="${path%/*}/.${path##*/}.headway-new"
rm -f -- "$new"
trap 'rm -f -- "$new"' EXIT
umask 077
set -C
cat >"$new"
[ "$(sha256sum <"$new")" = "$sum  -" ] || { echo 'the text was not transferred completely' >&2; exit 1; }
chmod "$mode" "$new"
chown 0:0 "$new"
sync "$new"
mv -fT -- "$new" "$path"
trap - EXIT
sync "${path%/*}/"
"""

# Errors are reported in one line; paramiko would also log its thread's traceback to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Ssh:
    """Use as `with connect(reach) as ssh:`. A user other than root works through `sudo -n`, but not in `execute` and `sftp`."""

    def __init__(self, client: paramiko.SSHClient, reach: Reach, gateway: "Ssh | None" = None) -> None:
        self._client, self.reach, self._gateway = client, reach, gateway
        self._prefix = [] if reach.user == "root" else ["sudo", "-n", "--"]
        self._sftp: paramiko.SFTPClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self.reach)

    @property
    def destination(self) -> str:
        """Return the options and the destination that ssh(1) would be given."""
        port = [] if self.reach.port == _SSH_PORT else ["-p", str(self.reach.port)]
        jump = [] if self.reach.jump is None else ["-J", _jumps(self.reach.jump)]
        return shlex.join([*jump, *port, f"{self.reach.user}@{self.reach.address}"])

    def close(self) -> None:
        """Close the connection, and those to the hosts that it goes through."""
        self._client.close()
        if self._gateway is not None:
            self._gateway.close()

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_S) -> str:
        """Return the command's output. Raises HostCommandError with its exit code and its standard error, SshError after `timeout_s`."""
        code, output, errors = self.execute(shlex.join([*self._prefix, *argv]), stdin, timeout_s, _title(argv))
        if code:
            reason = errors.strip() or output.strip()
            raise HostCommandError(f"{self.reach}: `{_title(argv)}` exited with {code}: {reason}", code, reason)
        return output

    def read(self, path: str) -> str | None:
        """Return the file's text; None when there is no such file."""
        code = 'if [ -e "$1" ]; then printf +; cat -- "$1"; fi'
        text = self.run(["sh", "-c", code, "read", path])
        return text[1:] if text else None

    def put(self, path: str, text: str, mode: int) -> None:
        """Write `path`, in an existing folder, as root's file with this text, atomically."""
        data = text.encode()
        self.run(["sh", "-c", _PUT, "put", path, f"{mode:04o}", hashlib.sha256(data).hexdigest()], stdin=data)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove existing files and links, and temporary files of an interrupted `put`."""
        doomed = [each for path in paths for each in (path, str(temporary_name(path)))]
        self.run(["xargs", "-0r", "rm", "-f", "--"], stdin="\0".join(doomed).encode())

    def sftp(self) -> paramiko.SFTPClient:
        """Return the connection's SFTP client, which reads files as the user who logged in. Raises SshError."""
        if self._sftp is None:
            try:
                self._sftp = self._client.open_sftp()
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise SshError(f"{self.reach}: files cannot be read over SFTP: {error}") from error
        return self._sftp

    def execute(self, command: str, stdin: bytes, timeout_s: float, title: str | None = None) -> tuple[int, str, str]:
        """Run the shell command as the user who logged in; return its exit code, output and errors. Raises SshError, with the `title`."""
        shown = command[:60] if title is None else title
        channel = self._open(timeout_s)
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            channel.close()

        watchdog = threading.Timer(timeout_s, end)
        watchdog.start()
        try:
            channel.exec_command(command)
            # A command that ends without reading its input reports the reason itself.
            with suppress(OSError):
                channel.sendall(stdin)
                channel.shutdown_write()
            output, errors = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
            code = channel.recv_exit_status()
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not overdue.is_set():
                raise SshError(f"{self.reach}: the connection was lost: {error}") from error
        finally:
            watchdog.cancel()
            channel.close()
        if overdue.is_set():
            raise SshError(f"{self.reach}: no answer within {timeout_s:g} s to `{shown}`")
        if code < 0:
            raise SshError(f"{self.reach}: the connection was lost, or a signal ended `{shown}`")
        return code, output.decode(errors="replace"), errors.decode(errors="replace")

    def tunnel(self, to: Reach) -> paramiko.Channel:
        """Return a channel through this host to another one's sshd. Raises ConnectError."""
        transport = self._client.get_transport()
        try:
            if transport is None:
                raise EOFError("the connection is closed")
            return transport.open_channel("direct-tcpip", (to.address, to.port), ("127.0.0.1", 0), timeout=CONNECT_S)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise ConnectError(f"{to}: no connection through {self.reach}: {error}") from error

    def _open(self, timeout_s: float) -> paramiko.Channel:
        transport = self._client.get_transport()
        if transport is None:
            raise SshError(f"{self.reach}: the connection is closed")
        try:
            return transport.open_session(timeout=timeout_s)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise SshError(f"{self.reach}: the connection was lost: {error}") from error


def connect(reach: Reach) -> Ssh:
    """Connect to a host whose key is in the known hosts. Raises ConnectError with a hint."""
    gateway = None if reach.jump is None else connect(reach.jump)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_Refuse(reach))
    try:
        _trust(client, reach)
        try:
            _log_in(client, reach, gateway)
        except paramiko.SSHException as error:
            # On a busy machine paramiko 5.1.0 has misread a key exchange ("Invalid packet blocking"). The login comes later,
            # so that another attempt does no harm.
            if isinstance(error, IncompatiblePeer) or not _is_in_key_exchange(client):
                raise
            client.close()
            _log_in(client, reach, gateway)
    except BaseException as error:
        client.close()
        if gateway is not None:
            gateway.close()
        if isinstance(error, paramiko.SSHException | OSError | EOFError):
            raise ConnectError(f"{reach}: {_reason(error, reach)}") from error
        raise
    return Ssh(client, reach, gateway)


def _log_in(client: paramiko.SSHClient, reach: Reach, gateway: Ssh | None) -> None:
    client.connect(
        reach.address,
        port=reach.port,
        username=reach.user,
        key_filename=None if reach.identity is None else str(Path(reach.identity).expanduser()),
        allow_agent=reach.identity is None or reach.as_ssh,
        look_for_keys=reach.as_ssh,
        sock=None if gateway is None else gateway.tunnel(reach),
        timeout=CONNECT_S,
        banner_timeout=CONNECT_S,
        auth_timeout=CONNECT_S,
        channel_timeout=CONNECT_S,
    )
    _without_delay(client)


def _is_in_key_exchange(client: paramiko.SSHClient) -> bool:
    """Return whether the host's banner was read, but no keys were exchanged."""
    transport = client.get_transport()
    return transport is not None and bool(transport.remote_version) and not transport.initial_kex_done


def as_ssh_would(host: str, reach: Reach, jump: str | None = None, config: Path | None = None) -> Reach:
    """Return how ssh would reach `host`: values that `reach` leaves empty come from the user's ~/.ssh/config (`config`).

    `jump` is a list of hosts as in ssh's ProxyJump, which get the same key; None: the one of the configuration. `reach.port` 0 and
    `reach.user` "" are empty. Raises ConnectError for a configuration that cannot be read.
    """
    file = config or Path(USER_CONFIG).expanduser()
    try:
        known = paramiko.SSHConfig.from_path(str(file)) if file.is_file() else paramiko.SSHConfig()
        return _looked_up(known, host, reach, jump, depth=0)
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise ConnectError(f"{file}: {error}") from error


def _looked_up(config: paramiko.SSHConfig, host: str, reach: Reach, jump: str | None, depth: int) -> Reach:
    found = config.lookup(host)
    identities = [path for path in found.get("identityfile", []) if Path(path).expanduser().is_file()]
    hosts_files = [path for path in found.get("userknownhostsfile", "").split() if Path(path).expanduser().is_file()]
    before = found.get("proxyjump", "none") if jump is None else jump
    if depth == _MOST_JUMPS:
        raise ValueError(f"more than {_MOST_JUMPS} hosts before `{host}`; a ProxyJump may lead to itself")
    gateway = None
    for each in () if before.lower() in {"", "none"} else before.split(","):
        user, _, address = each.strip().removeprefix("ssh://").rpartition("@")
        name, port = _with_port(address)
        start = Reach(name, name, port, user, reach.identity, reach.known_hosts, None, reach.as_ssh)
        # Only the first is reached by its own entry's jumps; the others through the ones before them.
        through = _looked_up(config, name, start, None if gateway is None else "none", depth + 1)
        gateway = through if gateway is None else replace(through, jump=gateway)
    return replace(
        reach,
        name=host,
        address=found.get("hostname", host),
        port=reach.port or int(found.get("port", _SSH_PORT)),
        user=reach.user or found.get("user") or getpass.getuser(),
        identity=reach.identity or next(iter(identities), None),
        known_hosts=reach.known_hosts or next(iter(hosts_files), None),
        jump=gateway,
    )


def _with_port(address: str) -> tuple[str, int]:
    """`host:port`, `[host]:port`, or a host, whose port is then 0."""
    name, separator, port = address.rpartition(":")
    if separator and port.isdecimal() and (":" not in name or name.endswith("]")):
        return name.strip("[]"), int(port)
    return address.strip("[]"), 0


def _jumps(last: Reach) -> str:
    before = [] if last.jump is None else [_jumps(last.jump)]
    return ",".join([*before, f"{last.user}@{last.address}" + ("" if last.port == _SSH_PORT else f":{last.port}")])


def temporary_name(path: str) -> PurePosixPath:
    """Return the temporary file to which `put` writes before the rename."""
    file = PurePosixPath(path)
    return file.with_name(f".{file.name}.headway-new")


def _without_delay(client: paramiko.SSHClient) -> None:
    """Disable Nagle's algorithm: a command is several small messages, and each pair of them would wait 40 ms for an
    acknowledgement."""
    transport = client.get_transport()
    if transport is not None and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Refuses unknown host keys."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        file = self.reach.known_hosts or USER_KNOWN_HOSTS
        raise ConnectError(
            f"{self.reach}: the host key is unknown; the host presented {_fingerprint(key)}. "
            f"If its console shows the same (`ssh-keygen -lf /etc/ssh/ssh_host_{_kind(key)}_key.pub`), "
            f"add this line to {file}: {hostname} {key.get_name()} {key.get_base64()}"
        )


def _trust(client: paramiko.SSHClient, reach: Reach) -> None:
    """Give the client the known keys of this host alone."""
    name = reach.address if reach.port == _SSH_PORT else f"[{reach.address}]:{reach.port}"
    for file in _known_hosts(reach):
        with _reading:
            known = _keys(file, file.stat().st_mtime_ns).lookup(name)
        for kind, key in known.items() if known is not None else ():
            client.get_host_keys().add(name, kind, key)


_reading = threading.Lock()


@lru_cache(maxsize=8)
def _keys(file: Path, _changed_ns: int) -> paramiko.HostKeys:
    """Return the file's keys. Read once: paramiko takes 0.2 s for 1,000 lines, and a cluster has as many hosts."""
    return paramiko.HostKeys(str(file))


def _known_hosts(reach: Reach) -> list[Path]:
    """Return the configured file, which must exist, or else the existing default files of ssh."""
    if reach.known_hosts is not None:
        return [Path(reach.known_hosts).expanduser()]
    return [path for path in (Path(USER_KNOWN_HOSTS).expanduser(), Path(SYSTEM_KNOWN_HOSTS)) if path.is_file()]


def _reason(error: Exception, reach: Reach) -> str:
    file = reach.known_hosts or USER_KNOWN_HOSTS
    match error:
        case paramiko.BadHostKeyException():
            return (
                f"the host presented {_fingerprint(error.key)}, but {file} has {_fingerprint(error.expected_key)}: either "
                f"another host answers at this address, or the host was reinstalled; in that case remove the old line "
                f"(`ssh-keygen -R '{error.hostname}' -f {file}`) and add the new one"
            )
        case paramiko.PasswordRequiredException():
            return f"the key {reach.identity} has a passphrase: add it to an agent (`ssh-add`) and leave `identity` out"
        case paramiko.AuthenticationException():
            ours = f"the key {reach.identity}" if reach.identity else "any key of the agent (or there is no agent: SSH_AUTH_SOCK)"
            return f"sshd does not accept {ours} for `{reach.user}`"
        case FileNotFoundError():
            return f"the file {error.filename} does not exist"
        case TimeoutError():
            return f"no connection within {CONNECT_S:g} s"
        case NoValidConnectionsError():
            return f"no connection: {'; '.join(map(_words, error.errors.values()))}"
        case paramiko.SSHException() if reach.identity is None and "No authentication methods" in str(error):
            return "no agent offers a key (SSH_AUTH_SOCK): start one and add the key (`ssh-add`), or set `identity` to the key's file"
    return f"no connection: {error}"


def _words(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def _fingerprint(key: paramiko.PKey) -> str:
    digest = b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _kind(key: paramiko.PKey) -> str:
    return key.get_name().removeprefix("ssh-").split("-")[0]


def _title(argv: Sequence[str]) -> str:
    """Return the command for a message: of a script, its title and arguments."""
    words = ["sh", *argv[3:]] if list(argv[:2]) == ["sh", "-c"] else list(argv)
    return shlex.join(words[:4])
