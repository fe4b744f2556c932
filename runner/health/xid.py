"""Parses NVIDIA driver reports (Xid) in the kernel's log, and knows which require a device reset.

By the immediate action in NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html:
those that ask for a reset of the device or a restart of the machine. Excluded are reports that a program can cause by
itself (13, 31, 43, 45, and 109, which comes with a 154 where a reset is needed) and those that the device has handled
(63, 92, 94).

The log is the machine's: a report may be of another job's device, which is no reason to blame this job's node.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

GRAVE: Mapping[int, str] = {
    46: "the GPU has stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "GPU memory remapping failure",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "NVLink training failed",
    140: "ECC error not recovered",
    143: "GPU initialization error",
    156: "resource retirement",
    158: "GPU fatal timeout",
}
# It names the action that the reports before it require.
_RECOVERY = 154
_NEEDED = re.compile(r"to 0x[0-9a-f]+ \((?P<action>GPU Reset Required|Node Reboot Required|Drain and Reset)\)", re.IGNORECASE)
# The driver's format: `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)]+)\): (?P<number>\d+)(?:, (?P<text>.*))?")
_TEXT_CHARACTERS = 200
# The driver's form, `PCI:0000:3b:00`, and NVML's, `00000000:3B:00.0`: domain, bus, device.
_ADDRESS = re.compile(r"(?:PCI:)?(?P<domain>[0-9a-f]+):(?P<bus>[0-9a-f]+):(?P<device>[0-9a-f]+)(?:\.[0-9a-f])?", re.IGNORECASE)


@dataclass(frozen=True)
class Xid:
    """One report. `device` is its address on the PCI bus, in the driver's form. `ours`: whether this job uses it; None
    if unknown."""

    number: int
    device: str
    text: str = ""
    ours: bool | None = None

    @property
    def meaning(self) -> str | None:
        """The number's meaning if the device must be reset; None otherwise."""
        needed = _NEEDED.search(self.text) if self.number == _RECOVERY else None
        return GRAVE.get(self.number) if needed is None else needed["action"].lower()


def parse(message: str) -> Xid | None:
    """Parse a kernel message; None if it is not a report."""
    match = _LINE.search(message)
    if match is None:
        return None
    return Xid(int(match["number"]), match["device"], (match["text"] or "")[:_TEXT_CHARACTERS])


def address(text: str) -> str | None:
    """Return the PCI address in the kernel's form, without the function: `0000:3b:00`; None if the text is not one."""
    match = _ADDRESS.fullmatch(text.strip())
    return None if match is None else "{:04x}:{:02x}:{:02x}".format(*(int(part, 16) for part in match.groups()))


def of_job(xids: Iterable[Xid], devices: Collection[str] | None) -> list[Xid]:
    """Return the reports except those of devices that the job does not use.

    `devices` are the addresses that it uses; with None they are unknown: every report stays, and none counts against
    the node.
    """
    if devices is None:
        return [replace(each, ours=None) for each in xids]
    return [replace(each, ours=True) for each in xids if address(each.device) in devices]


def first_grave(xids: Iterable[Xid]) -> Xid | None:
    """Return the first report after which a device of the job must be reset; later ones are often its consequences."""
    return next((each for each in xids if each.meaning is not None and each.ours), None)


def describe(xids: Iterable[Xid]) -> str:
    """Return the reports in a few words, the grave ones first: `Xid 79 (the GPU has fallen off the bus) of
    PCI:0000:3b:00, Xid 45 of ...`."""
    found = Counter((each.meaning is None, each.number, each.meaning, _whose(each)) for each in xids)
    return ", ".join(
        f"Xid {number}{f' ({meaning})' if meaning else ''} of {device}{f', {count} times' if count > 1 else ''}"
        for (_, number, meaning, device), count in sorted(found.items(), key=lambda item: item[0][0])
    )


def _whose(xid: Xid) -> str:
    return xid.device if xid.ours else f"{xid.device}, which may be another job's"
