"""Tests first causes: which of many exits came first, what kind it is, and when two failures are the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.contract import CauseKind, Exit
from headway.runner.coordinator.causes import (
    Cause,
    Ended,
    Raised,
    cause_of,
    hang_cause,
    is_node_gone,
    kind_of,
    node_lost_cause,
    unspecific,
)
from headway.runner.health.watch import Hang
from headway.runner.health.xid import Xid

HOSTS = {0: "n0", 1: "n1"}
CLOSED = Raised(
    "builtins.RuntimeError",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41907",
)
REFUSED = Raised(
    "torch.distributed.DistNetworkError", "The client socket has failed to connect to any network address of (n0, 29500)."
)
WATCHDOG = Raised(
    "torch.distributed.DistBackendError",
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600001 milliseconds",
)
BAD_SAMPLE = Raised("builtins.ValueError", "sample 4711 is empty", "train.py:40 collate", 25, 400)
NO_MEMORY = Raised(
    "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has ...", "model.py:9 forward", 7
)


def ended(rank: int, code: int, *, asked: bool = False, step: int = 25, oom: bool = False, how: str = "") -> Ended:
    words = how or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
    return Ended(rank, rank // 2, code, words, asked, step, oom)


def cause(*exits: Ended, script: bool = False, **raised: Raised) -> Cause:
    """`raised` by rank: `r1=...`."""
    return cause_of(list(exits), {int(name[1:]): error for name, error in raised.items()}, HOSTS, script=script)


def test_a_cause_has_its_place_step_and_text() -> None:
    found = cause(ended(0, 1, step=24), ended(3, 1), r3=BAD_SAMPLE, r0=CLOSED)
    assert (found.kind, found.rank, found.node, found.host, found.step, found.sample) == (
        CauseKind.USER_ERROR,
        3,
        1,
        "n1",
        25,
        400,
    )
    assert found.text == "exit code 1: ValueError: sample 4711 is empty"
    assert (found.outside, found.final) == (False, False)


@pytest.mark.parametrize("gone", [CLOSED, REFUSED, WATCHDOG], ids=["gloo", "store", "nccl"])
def test_a_lost_peer_is_never_the_first_cause_if_another_error_exists(gone: Raised) -> None:
    assert cause(ended(0, 1), ended(1, 1), ended(2, 1), r0=gone, r1=BAD_SAMPLE, r2=gone).rank == 1
    assert cause(ended(0, 1), ended(1, -9), r0=gone).rank == 1
    alone = cause(ended(0, 1), r0=gone)
    assert (alone.kind, alone.rank) == (CauseKind.CRASH, 0)


def test_an_abort_after_a_lost_peer_is_not_first_but_an_independent_one_is() -> None:
    """NCCL's watchdog aborts a process whose peer has gone."""
    assert cause(ended(0, -6), ended(1, 1), r1=BAD_SAMPLE).rank == 1
    assert cause(ended(0, 1), ended(1, -6), r0=CLOSED).rank == 1
    assert cause(ended(0, -6), ended(1, -11)).rank == 1


def test_a_rank_that_reported_its_error_precedes_its_peers_complaint() -> None:
    """The peer saw the connection close before the rank that raised had ended."""
    assert cause(ended(0, 1), ended(1, 1, asked=True), r0=CLOSED, r1=BAD_SAMPLE).rank == 1
    leaving = replace(BAD_SAMPLE, type="lightning.SIGTERMException", text="")
    assert cause(ended(0, 1), ended(1, 1, asked=True), r0=CLOSED, r1=leaving).rank == 0


def test_a_rank_ended_by_headway_is_the_cause_only_without_another() -> None:
    assert cause(ended(2, -9, asked=True), ended(0, 1), ended(1, -15)).rank == 1
    assert cause(ended(2, -9, asked=True), ended(0, 0), ended(1, -15, asked=True)).rank == 2


def test_the_kernels_oom_killer_is_distinguished_from_another_kill() -> None:
    killed, starved = cause(ended(1, -9)), cause(ended(0, -9), ended(1, -9, oom=True))
    assert (killed.kind, killed.outside) == (CauseKind.CRASH, True)
    assert (starved.kind, starved.rank, starved.outside) == (CauseKind.OUT_OF_MEMORY, 1, False)


def test_a_lost_node_precedes_its_consequences() -> None:
    gone = [ended(rank, -9, how="node lost: silent for 3.1 s") for rank in (2, 3)]
    found = cause(ended(0, 1), ended(1, -6), *gone, r0=CLOSED)
    assert (found.kind, found.node, found.host, found.fingerprint) == (CauseKind.NODE_LOST, 1, "n1", "node lost")
    assert cause(ended(2, -9, how="its node restarted"), ended(0, 1)).kind is CauseKind.NODE_LOST
    assert node_lost_cause(1, "n1", "it never joined", 3).fingerprint == "node lost"


def test_agreed_exit_codes_come_last_and_a_scripts_codes_are_ignored() -> None:
    together = [ended(rank, int(Exit.UNVERIFIED)) for rank in (0, 2, 3)]
    assert cause(*together, ended(1, 1)).rank == 1
    assert cause(*together, ended(1, 1), script=True).rank == 0


def test_the_builtin_trainers_stop_code_is_final_but_a_scripts_is_not() -> None:
    said = replace(BAD_SAMPLE, type="headway.runner.train.data.DataError", text="`corpus.bin` is not there", step=None)
    found = cause(ended(2, 1), ended(0, int(Exit.STOP)), r0=said)
    assert (found.rank, found.kind, found.final) == (0, CauseKind.USER_ERROR, True)
    assert not cause(ended(0, int(Exit.STOP)), script=True).final


def test_an_unrequested_termination_signal_is_a_preemption() -> None:
    assert cause(ended(0, -15)).kind is CauseKind.PREEMPTION
    assert cause(ended(0, int(Exit.PREEMPTED))).kind is CauseKind.PREEMPTION


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("torch.OutOfMemoryError", NO_MEMORY.text, CauseKind.OUT_OF_MEMORY),
        ("builtins.RuntimeError", "CUDA out of memory. Tried to allocate 1 MiB", CauseKind.OUT_OF_MEMORY),
        (
            "builtins.RuntimeError",
            "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory",
            CauseKind.OUT_OF_MEMORY,
        ),
        ("builtins.MemoryError", "", CauseKind.OUT_OF_MEMORY),
        ("builtins.OSError", "[Errno 12] Cannot allocate memory", CauseKind.OUT_OF_MEMORY),
        ("headway.runner.train.gradients.NonFiniteError", "the loss is nan", CauseKind.NAN),
        ("headway.runner.corruption.CorruptionError", "rank 3 computes what no other rank does", CauseKind.CORRUPTION),
        ("mylib.io.CorruptionError", "bad checksum", CauseKind.USER_ERROR),
        ("builtins.RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.", CauseKind.NAN),
        ("builtins.OSError", "[Errno 28] No space left on device: '/x'", CauseKind.STORAGE),
        ("builtins.OSError", "[Errno 5] Input/output error", CauseKind.STORAGE),
        ("builtins.OSError", "[Errno 116] Stale file handle", CauseKind.STORAGE),
        ("headway.runner.checkpoint.stores.StoreError", "it does not create names exclusively", CauseKind.STORAGE),
        (
            "builtins.RuntimeError",
            "[enforce fail at inline_container.cc:863] . PytorchStreamWriter failed writing file data/0",
            CauseKind.STORAGE,
        ),
        ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", CauseKind.CRASH),
        ("torch.AcceleratorError", "CUDA error: device-side assert triggered", CauseKind.USER_ERROR),
        ("builtins.RuntimeError", "NCCL error: unhandled cuda error", CauseKind.CRASH),
        ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: 'x'", CauseKind.CRASH),
        ("builtins.RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Killed.", CauseKind.CRASH),
        ("builtins.KeyError", "'loss'", CauseKind.USER_ERROR),
        ("builtins.RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", CauseKind.USER_ERROR),
    ],
)
def test_exceptions_are_distinguished(name: str, text: str, kind: CauseKind) -> None:
    assert kind_of(Raised(name, text)) is kind


def test_two_failures_of_one_origin_share_a_fingerprint() -> None:
    other = replace(BAD_SAMPLE, text="sample 99 is empty", step=40, sample=8)
    first, again = cause(ended(3, 1), r3=BAD_SAMPLE), cause(ended(0, 1, step=40), r0=other)
    assert first.fingerprint == again.fingerprint == "user error: ValueError at train.py:40 collate: sample * is empty"
    elsewhere = replace(BAD_SAMPLE, at="train.py:71 evaluate")
    assert cause(ended(3, 1), r3=elsewhere).fingerprint != first.fingerprint
    assert cause(ended(0, -9)).fingerprint == cause(ended(3, -9, step=1)).fingerprint == "crash: killed by signal 9"


def test_a_fingerprint_has_no_numbers_paths_or_quotes() -> None:
    text = "shard '/data/a-17.bin' at 0x7f3a, 10.0.0.7:29500: read 1,024 of 2.5e9 bytes of /mnt/lustre/a/b"
    assert unspecific(text) == "shard * at *, * read * of *e* bytes of *"


def test_a_hang_names_its_culprit_and_without_one_no_node() -> None:
    named = hang_cause(Hang((3, 2), "compute", 2.25, "rank 2 is stopped"), {2: 1, 3: 1}, HOSTS, 9)
    assert (named.kind, named.rank, named.host, named.fingerprint) == (CauseKind.HANG, 2, "n1", "hang: compute")
    assert named.text == "no heartbeat for 2.2 s in compute: rank 2 is stopped"
    nobody = hang_cause(Hang((), "collective", 600.0, "nobody differs"), {}, HOSTS, 9)
    assert (nobody.rank, nobody.node, nobody.host) == (None, None, None)


ends = st.builds(
    Ended,
    st.integers(0, 7),
    st.integers(0, 1),
    st.sampled_from([-11, -9, -15, -6, 0, 1, 2, 80, 82, 83, 84, 85]),
    st.sampled_from(["exit code 1", "killed by SIGKILL", "node lost", "its node restarted"]),
    st.booleans(),
    st.integers(0, 50),
    st.booleans(),
)
errors = st.dictionaries(st.integers(0, 7), st.sampled_from([CLOSED, REFUSED, WATCHDOG, BAD_SAMPLE, NO_MEMORY]))


@pytest.mark.slow
@given(st.lists(ends, min_size=1, max_size=8, unique_by=lambda end: end.rank), errors)
def test_a_rank_that_only_reacted_is_not_blamed(exits: list[Ended], raised: dict[int, Raised]) -> None:
    found = cause_of(exits, raised, HOSTS)
    (blamed,) = [end for end in exits if end.rank == found.rank]
    by_itself = [end for end in exits if end.code != 0 and not end.asked]
    own = [end for end in by_itself if end.rank in raised and end.code == 1 and raised[end.rank] in (BAD_SAMPLE, NO_MEMORY)]
    if by_itself:
        assert not blamed.asked or (blamed.rank in raised and blamed.code > 0)
    if own:
        assert blamed.code != 1 or is_node_gone(blamed.how) or blamed.oom or raised.get(blamed.rank) in (BAD_SAMPLE, NO_MEMORY)


# --- devices ----------------------------------------------------------------------------------------------------------

LOST_GPU = (Xid(79, "PCI:0000:3b:00", "GPU has fallen off the bus.", True), Xid(45, "PCI:0000:3b:00", ours=True))
FAULT = (Xid(31, "PCI:0000:3b:00", "MMU Fault", True),)
NO_DEVICE = Raised("torch.AcceleratorError", "CUDA error: unspecified launch failure", "model.py:9 forward", 24)


def with_xids(end: Ended, xids: tuple[Xid, ...]) -> Ended:
    return end._replace(xids=xids)


@pytest.mark.parametrize("asked", [False, True], ids=["alone", "with the others"])
def test_a_dead_device_is_the_cause_wherever_the_first_rank_ended(asked: bool) -> None:
    """Rank 0's NCCL noticed first; rank 2, on the node with the device, may have hung until it was ended."""
    found = cause(ended(0, -6), with_xids(ended(2, -9, asked=asked), LOST_GPU), ended(1, 1), r1=WATCHDOG)
    assert (found.kind, found.node, found.host, found.fingerprint) == (CauseKind.HARDWARE, 1, "n1", "hardware: Xid 79")
    assert found.text == (
        "Xid 79 (the GPU has fallen off the bus) of PCI:0000:3b:00, Xid 45 of PCI:0000:3b:00 in the kernel's log; "
        "rank 2: killed by signal 9"
    )
    assert found.outside


def test_on_a_node_with_a_dead_device_the_rank_that_reported_it_is_named() -> None:
    found = cause(with_xids(ended(2, 1), LOST_GPU), with_xids(ended(3, 1), LOST_GPU), r2=CLOSED, r3=NO_DEVICE)
    assert (found.kind, found.rank, found.step) == (CauseKind.HARDWARE, 3, 24)
    assert found.text.endswith("rank 3: exit code 1: AcceleratorError: CUDA error: unspecified launch failure")


def test_a_device_error_that_a_program_can_cause_is_reported_as_a_crash() -> None:
    found = cause(ended(0, 1), with_xids(ended(2, 1), FAULT), r0=CLOSED, r2=NO_DEVICE)
    assert (found.kind, found.rank) == (CauseKind.CRASH, 2)
    assert found.text.endswith("; the kernel's log: Xid 31 of PCI:0000:3b:00")


def test_a_user_error_elsewhere_or_a_lost_node_is_not_blamed_on_a_device() -> None:
    """The device may have been dead for a while before it was used."""
    assert cause(ended(0, 1), with_xids(ended(2, -9, asked=True), LOST_GPU), r0=BAD_SAMPLE).kind is CauseKind.USER_ERROR
    gone = ended(0, -9, how="node lost: it stopped sending heartbeats")
    assert cause(gone, with_xids(ended(2, -9), LOST_GPU)).kind is CauseKind.NODE_LOST


def test_a_hang_with_a_dead_device_is_caused_by_the_device() -> None:
    hang, nodes = Hang((0,), "collective", 600.0, "nobody goes on"), {0: 0}
    exits = [ended(0, -9, asked=True), with_xids(ended(2, -9, asked=True), LOST_GPU)]
    found = hang_cause(hang, nodes, HOSTS, 9, exits)
    assert (found.kind, found.node, found.step) == (CauseKind.HARDWARE, 1, 9)
    assert found.text.endswith("rank 2: no heartbeat for 600.0 s in collective: nobody goes on")
    assert hang_cause(hang, nodes, HOSTS, 9, [with_xids(each, FAULT) for each in exits]).kind is CauseKind.HANG


def test_corruption_without_a_report_from_its_finder_blames_no_rank() -> None:
    raised = {
        rank: Raised("headway.runner.corruption.CorruptionError", "rank 3 computes what no other does") for rank in range(4)
    }
    found = cause_of([Ended(rank, rank // 2, 1, "exit code 1", False, 9) for rank in range(4)], raised, {0: "n0", 1: "n1"})
    assert (found.kind, found.rank, found.node, found.host, found.outside) == (CauseKind.CORRUPTION, None, None, None, True)
