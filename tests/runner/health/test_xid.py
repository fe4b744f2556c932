"""Tests how NVIDIA driver reports are read from the kernel log, and what they mean."""

import os
import uuid
from pathlib import Path

import pytest

from headway.runner.agent.kernel_log import KEPT, KMSG, KernelLog, records
from headway.runner.health.xid import Xid, address, describe, first_grave, of_job, parse

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault"
CHANGED = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x{}"


def test_a_report_is_read_with_its_device_and_other_lines_are_ignored() -> None:
    assert parse(LOST) == Xid(79, "PCI:0000:3b:00", "pid=1234, name=python, GPU has fallen off the bus.")
    assert parse("NVRM: Xid (PCI:0000:3b:00): 48") == Xid(48, "PCI:0000:3b:00")
    assert parse("nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1") is None


@pytest.mark.parametrize("number", [48, 64, 74, 79, 95, 119, 120, 140])
def test_a_device_must_be_reset_after(number: int) -> None:
    assert Xid(number, "PCI:0000:3b:00").meaning is not None


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 92, 94])
def test_program_errors_and_handled_errors_do_not_blame_the_device(number: int) -> None:
    assert Xid(number, "PCI:0000:3b:00").meaning is None


def test_the_driver_reports_the_required_action() -> None:
    actions = ["2 (Node Reboot Required)", "1 (GPU Reset Required)", "0 (None)", "3 (Drain P2P)"]
    found = [parse(CHANGED.format(action)) for action in actions]
    assert [each and each.meaning for each in found] == ["node reboot required", "gpu reset required", None, None]


def test_reports_are_counted_and_listed_by_severity() -> None:
    xids = of_job([xid for line in (FAULT, LOST, LOST) if (xid := parse(line)) is not None], {"0000:3b:00"})
    assert first_grave(xids) == xids[1]
    assert first_grave(xids[:1]) is None
    assert describe(xids) == ("Xid 79 (the GPU has fallen off the bus) of PCI:0000:3b:00, 2 times, Xid 31 of PCI:0000:3b:00")


def test_a_report_about_another_jobs_device_is_ignored() -> None:
    """Slurm gives one node to two jobs: reports about the other's device end no generation and bar no node."""
    lost = parse(LOST)
    assert lost is not None
    assert of_job([lost], {"0000:5e:00"}) == []


def test_a_report_about_an_unattributed_device_is_shown_without_blame() -> None:
    lost = parse(LOST)
    assert lost is not None
    (found,) = of_job([lost], None)
    assert first_grave([found]) is None
    assert describe([found]) == "Xid 79 (the GPU has fallen off the bus) of PCI:0000:3b:00, which may be another job's"


def test_driver_nvml_and_kernel_addresses_are_normalized() -> None:
    for text in ("PCI:0000:3b:00", "00000000:3B:00.0", "0000:3b:00.0", "PCI:0000:3B:00"):
        assert address(text) == "0000:3b:00"
    assert address("GPU-0") is None


def record(sequence: int, message: str, priority: int = 4) -> str:
    return f"{priority},{sequence},{sequence * 1000},-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


def test_reports_since_the_generations_start_are_read_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(record(1, LOST))
    kernel = KernelLog(log)
    assert kernel.xids() == []
    with log.open("a") as file:
        file.write(record(2, FAULT) + record(3, "usb 1-1: new device") + record(4, LOST))
    assert [each.number for each in kernel.xids()] == [31, 79]
    assert [each.number for each in kernel.xids()] == [31, 79]
    kernel.begin()
    assert kernel.xids() == []


def test_a_line_that_a_process_wrote_to_the_log_is_not_a_report(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")
    kernel = KernelLog(log)
    log.write_text(record(1, LOST, priority=12))
    assert kernel.xids() == []


def test_the_number_of_kept_device_reports_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")
    kernel = KernelLog(log)
    log.write_text("".join(record(number, LOST) for number in range(1000)))
    assert len(kernel.xids()) == KEPT


def test_without_permission_to_read_the_log_nothing_is_reported(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "no kmsg").xids() == []


def test_the_kernels_own_device_yields_records_in_this_format() -> None:
    text = f"headway test {uuid.uuid4()}"
    try:
        log, own = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK), os.open(KMSG, os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"{KMSG} cannot be opened here (root may): {error}")
    try:
        os.lseek(log, 0, os.SEEK_END)
        os.write(own, f"<4>{text}\n".encode())
        found = list(records(log))
    finally:
        os.close(log)
        os.close(own)
    assert [priority >> 3 for priority, message in found if message == text] == [1], "a process's, not the kernel's"
