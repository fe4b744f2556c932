"""Opens UDP sockets of this process inside other network namespaces."""

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

# of RoCE v2 (IANA)
ROCE_PORT = 4791

# linux/sched.h; Python has it, and os.setns, from 3.12 on
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def socket_in(namespace: Path, interface: str, address: str, port: int = 0) -> Iterator[socket.socket]:
    """A UDP socket that sends and receives over one interface of the namespace, and returns each datagram's TOS byte."""
    with _new_socket(namespace) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        made.bind((address, port))
        yield made


def send(sender: socket.socket, payload: bytes, to: tuple[str, int], tos: int) -> None:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    sender.sendto(payload, to)


def receive(receiver: socket.socket, timeout_s: float) -> tuple[bytes, int, tuple[str, int]] | None:
    """The next datagram, its TOS byte, and its sender; None if none arrived in time."""
    receiver.settimeout(timeout_s)
    try:
        payload, ancillary, _, sender = receiver.recvmsg(1 << 16, socket.CMSG_SPACE(4))
    except TimeoutError:
        return None
    ((_, _, tos),) = ancillary
    return payload, struct.unpack("B", tos[:1])[0], sender


def _new_socket(namespace: Path) -> socket.socket:
    """A socket stays in the namespace of the thread that created it: one thread enters it briefly, and the others stay here."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        try:
            with namespace.open("rb") as file:
                if _libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
