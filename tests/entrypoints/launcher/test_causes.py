"""The root cause among errors, rather than the error of a rank that only lost its peer.

A failed write names the full disk, even if the error itself does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain_launcher import failure
from cloudtrain_launcher.error_details import FULL_BYTES, CrashOutput, describe, full_disk_hint
from cloudtrain_wire import causes
from cloudtrain_wire.events import Error, RankEnded, RankFailed, RankStarted
from tests.entrypoints.launcher.test_launcher_parts import error, launcher_of

GLOO = "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:415"
WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1,"
    " NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("exception", "message", "file"),
    [
        ("RuntimeError", GLOO, ""),
        (
            "RuntimeError",
            "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused",
            "",
        ),
        ("RuntimeError", "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 30000 ms", ""),
        (
            "RuntimeError",
            "NCCL error: remote process exited or there was a network error, ncclRemoteError",
            "",
        ),
        (
            "DistBackendError",
            "NCCL error in: x.cpp:1, remote process exited or there was a network error",
            "",
        ),
        ("DistBackendError", f"[Rank 1] {WATCHDOG}", ""),
        ("DistNetworkError", "failed to recv, got 0 bytes", ""),
        (
            "DistNetworkError",
            "The client socket has timed out after 60000ms while trying to connect to (a, 1)",
            "",
        ),
        ("DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cpu//0", ""),
        ("RuntimeError", "Broken pipe", "/venv/torch/distributed/distributed_c10d.py"),
        ("RuntimeError", "Connection reset by peer", "/venv/torch/autograd/graph.py"),
    ],
    ids=lambda value: value[:30],
)
def test_an_error_about_a_lost_peer_is_a_consequence(
    exception: str, message: str, file: str
) -> None:
    assert causes.is_consequence(exception, message, file)


@pytest.mark.parametrize(
    ("exception", "message", "file"),
    [
        ("ValueError", "the dog ate shard 3", ""),
        (
            "ConnectionRefusedError",
            "[Errno 111] Connection refused",
            "/venv/torch/utils/data/dataloader.py",
        ),
        ("ConnectionError", "HTTPConnectionPool(host='data', port=80): ... Connection refused", ""),
        ("BrokenPipeError", "[Errno 32] Broken pipe", ""),
        ("RuntimeError", "the data server: Connection refused", "/job/data.py"),
        ("RuntimeError", "Timed out waiting for the data server", "/job/data.py"),
        (
            "DistNetworkError",
            "The server socket has failed to listen: EADDRINUSE, address already in use",
            "",
        ),
        (
            "DistBackendError",
            "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10",
            "",
        ),
        (
            "RuntimeError",
            "[../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: lo",
            "",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_an_error_of_the_program_is_not_a_consequence(
    exception: str, message: str, file: str
) -> None:
    assert not causes.is_consequence(exception, message, file)


def started(rank: int, attempt: int = 0, time: float = 1.0) -> RankStarted:
    return RankStarted(time=time, rank=rank, local_rank=rank % 4, attempt=attempt)


def finished(rank: int, time: float) -> RankEnded:
    return RankEnded(time=time, rank=rank, exitcode=0)


def lost_peer(rank: int, time: float, attempt: int = 0) -> Error:
    return error(
        rank, time, exception="RuntimeError", message=GLOO, consequence=True, attempt=attempt
    )


def test_a_rank_that_exited_with_0_while_others_waited_for_it_is_the_cause(tmp_path: Path) -> None:
    node = launcher_of(tmp_path)
    for event in (started(4), started(5), finished(5, 2.0), lost_peer(4, 3.0)):
        node.on_event(event)

    outcome, cause = node.outcome(1)
    assert outcome == "failed"
    assert cause is not None
    assert (cause.rank, cause.message) == (
        5,
        "ended with exit code 0 while rank 4 (node 0) still waited for it",
    )
    assert not cause.consequence


@pytest.mark.linux("states of processes are in /proc")
def test_a_rank_whose_process_is_gone_has_ended(tmp_path: Path) -> None:
    ranks = launcher_of(tmp_path).ranks
    with subprocess.Popen(["true"]) as process:
        process.wait()
    for rank, pid in ((4, os.getpid()), (5, process.pid)):
        ranks.on_event(started(rank).replace(pid=pid))

    assert ranks.running() == {0: os.getpid()}
    assert ranks.ended() == [5]


@pytest.mark.parametrize(
    "events",
    [
        (finished(5, 2.0), lost_peer(4, 3.0), error(6, 4.0, attempt=0)),
        (finished(5, 2.0), error(6, 1.5, attempt=0), lost_peer(4, 3.0)),
    ],
    ids=["told later", "told before"],
)
def test_an_error_of_the_program_counts_more_than_an_early_exit(
    tmp_path: Path, events: tuple[Any, ...]
) -> None:
    node = launcher_of(tmp_path)
    for event in events:
        node.on_event(event)

    assert node.outcome(1)[1].rank == 6  # type: ignore[union-attr]


def crash_output(*lines: str) -> CrashOutput:
    """Return what is collected from these lines, which must not depend on how they arrive."""
    crash = CrashOutput()
    for line in lines:
        crash.feed(line)

    at_once = CrashOutput()
    at_once.feed("\n".join(lines))
    assert (at_once.reason, at_once.stack) == (crash.reason, crash.stack)
    return crash


def test_an_abort_by_nccls_watchdog_has_its_reason_and_is_a_consequence() -> None:
    crash = crash_output(
        "training",
        f"[rank1]:[E1121 10:00:00.0 ProcessGroupNCCL.cpp:683] [Rank 1] {WATCHDOG}",
        "[rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:740] [Rank 1] To avoid data inconsistency,"
        " we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread"
        f" terminated: {WATCHDOG}",
    )
    reported = failure.exit_error(1, -signal.SIGABRT, 1.0, finished=False, reason=crash.reason)
    assert reported.message == f"was killed by SIGABRT: {WATCHDOG}"
    assert reported.consequence, "the rank that did not come is the cause, or nobody"


def test_an_abort_by_another_library_has_its_exception_and_is_a_cause() -> None:
    crash = crash_output(
        "  what():  something that a program printed",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  the tokenizer lost its file",
        "Fatal Python error: Aborted",
    )
    reported = failure.exit_error(1, -signal.SIGABRT, 1.0, finished=False, reason=crash.reason)
    assert reported.message == "was killed by SIGABRT: runtime_error: the tokenizer lost its file"
    assert not reported.consequence


def test_a_crash_has_its_message_though_its_rank_has_printed_more(tmp_path: Path) -> None:
    ranks = launcher_of(tmp_path).ranks
    crash = "terminate called after throwing an instance of 'E'\n  what():  it is lost"
    for text in ("x" * 3_000_000, crash, *["y" * 300] * 1000):
        ranks.on_text(0, text)

    ranks.on_event(RankFailed(time=2.0, local_rank=0, exitcode=-signal.SIGABRT))
    ranks.report_failures(stopping=False)
    assert ranks.errors[-1].message == "was killed by SIGABRT: E: it is lost"


def test_a_crash_of_a_program_that_prints_wide_gaps_is_found_at_once() -> None:
    began = time.process_time()
    crash_output(*[" " * 60_000 + "x"] * 2)
    assert time.process_time() - began < 2


def test_a_crash_is_reported_with_the_innermost_line_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import lib\nlib.crash(  1)\n")
    crash = crash_output(
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait',
        "",
        "Current thread 0x00007f02 (most recent call first):",
        '  File "/venv/lib/site-packages/lib.py", line 5 in crash',
        f'  File "{tmp_path}/train.py", line 2 in <module>',
        f'  File "{tmp_path}/.payload/worker.py", line 80 in main',
        "",
        "Extension modules: numpy.core._multiarray_umath, torch._C (total: 20)",
        "[W] a line of another thread",
    )
    crashed = failure.exit_error(1, -signal.SIGSEGV, 1.0, finished=False)
    error = crash.add_stack(crashed, tmp_path, tmp_path / ".payload")
    assert (error.file, error.line, error.code) == ("train.py", 2, "lib.crash(  1)")
    assert error.stack.startswith("Fatal Python error: Segmentation fault")
    assert "Extension modules" not in error.stack
    assert "another thread" not in error.stack
    assert crash_output("all is well").add_stack(crashed, tmp_path, tmp_path) == crashed


def test_a_success_of_processes_that_never_formed_one_group_ends_with_a_warning(
    tmp_path: Path, capfdbinary: Any
) -> None:
    for groups, warned in (
        ((0, 0), True),
        ((0, 8), False),
        ((), False),
    ):
        node = launcher_of(tmp_path)
        for rank, size in enumerate(groups):
            node.on_event(finished(rank, 2.0).replace(group=size))

        assert node.conclude(0, 1.0) == 0
        output = capfdbinary.readouterr().out.decode()
        assert ("warning: the processes of this job never formed one" in output) == warned
        assert ('"type":"warning"' in output) == warned


def test_a_long_chain_keeps_the_exception_that_began_it(tmp_path: Path) -> None:
    def save(depth: int) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            go_down(depth, error)

    def go_down(depth: int, error: OSError) -> None:
        go_on(depth, error)

    def go_on(depth: int, error: OSError) -> None:
        if depth == 0:
            raise RuntimeError("step 40 was not saved") from error

        go_down(depth - 1, error)

    with pytest.raises(RuntimeError) as raised:
        save(depth=40)

    error = raised.value
    described = describe(error, error.__traceback__, tmp_path, tmp_path / "payload")
    assert "No space left on device" in described.traceback
    assert described.traceback.rstrip().endswith("RuntimeError: step 40 was not saved")


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that are free, by folder."""
    free: dict[str, int] = {}

    def statvfs(folder: str) -> SimpleNamespace:
        if folder not in free:
            raise FileNotFoundError(folder)

        return SimpleNamespace(f_blocks=1 << 20, f_bavail=free[folder], f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return free


FOLDERS = {"CLOUDTRAIN_CHECKPOINT_DIR": "/saved", "CLOUDTRAIN_MODEL_DIR": "/model"}
TORCH_ERROR = RuntimeError("basic_ios::clear: iostream error")


def test_the_full_disk_is_named_with_what_to_do(disks: dict[str, int]) -> None:
    disks |= {"/saved": 0, "/model": 10 * FULL_BYTES}
    hint = full_disk_hint(TORCH_ERROR, FOLDERS)
    assert hint.startswith("the disk of /saved is full")
    assert "checkpoints.keep" in hint
    disks |= {"/saved": 10 * FULL_BYTES, "/model": FULL_BYTES - 1}
    assert full_disk_hint(OSError("write failed"), FOLDERS).startswith("the disk of /model is full")


def test_disk_with_space_or_unrelated_error_is_not_mentioned(
    disks: dict[str, int],
) -> None:
    disks["/saved"] = FULL_BYTES
    assert full_disk_hint(TORCH_ERROR, FOLDERS) == ""
    disks["/saved"] = 0
    assert full_disk_hint(ValueError("the dog ate shard 3"), FOLDERS) == ""
    assert full_disk_hint(TORCH_ERROR, {}) == ""
