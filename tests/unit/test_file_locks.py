"""Locks on files keep processes apart, and end with their process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.errors import RefusedError, UsageError
from cloudtrain.providers.local.supervisor_status import take_lock
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import log_reader_lock
from cloudtrain.submission.drills.scorecard import workplace
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain_launcher import file_locks
from cloudtrain_launcher.file_locks import FileLock, acquire, is_locked, locked
from tests.support.limits import HANG_SECONDS

IMPORT = (
    "import sys; sys.path[0] = sys.argv[1]; from pathlib import Path; path = Path(sys.argv[2])\n"
)
IMPORT += "from cloudtrain_launcher.file_locks import acquire, locked\n"
COUNT = """
for _ in range(25):
    with locked(path):
        number = int(path.with_name("number").read_text())
        path.with_name("number").write_text(str(number + 1))
"""
HOLD = "lock = acquire(path, wait=False); print(lock is not None, flush=True); sys.stdin.read()\n"
"""Says whether it has the lock, and holds it until it is killed."""


def command(code: str, path: Path) -> list[str]:
    return [sys.executable, "-c", IMPORT + code, str(bundled("entrypoints")), str(path)]


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that tries to lock a file; it has said in the first line whether it could."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(HOLD, path), stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def refuse_locks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)


def taken(path: Path) -> FileLock:
    lock = acquire(path, wait=False)
    assert lock is not None
    return lock


def test_processes_change_a_file_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    counting = [subprocess.Popen(command(COUNT, tmp_path / "lock")) for _ in range(4)]
    assert [process.wait(HANG_SECONDS) for process in counting] == [0] * 4
    assert (tmp_path / "number").read_text() == "100"


@pytest.mark.linux("when a process began, in /proc")
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:
        assert says(first) == "True"
        assert is_locked(path) is True
        assert acquire(path, wait=False) is None
        with holder(path) as second:
            assert says(second) == "False"
        first.kill()
        first.wait(HANG_SECONDS)
        assert is_locked(path) is False
        taken(path).release()
    assert is_locked(path) is not True


def test_a_waiting_process_is_told_once_and_gets_the_lock(tmp_path: Path) -> None:
    signal = threading.Event()
    order = list[str]()

    def second() -> None:
        with locked(tmp_path / "lock", on_wait=signal.set):
            order.append("second")

    first = taken(tmp_path / "lock")
    thread = threading.Thread(target=second)
    thread.start()
    assert signal.wait(HANG_SECONDS)
    order.append("first")
    first.release()
    thread.join(HANG_SECONDS)
    assert order == ["first", "second"]


@pytest.mark.parametrize("code", sorted(file_locks.NO_LOCKS))
def test_a_disk_without_locks_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_locks(monkeypatch, code)
    with pytest.raises(OSError, match="XDG_DATA_HOME"):
        acquire(tmp_path / "lock", wait=False)
    assert is_locked(tmp_path / "lock") is None


def test_any_other_error_of_the_disk_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_locks(monkeypatch, 5)
    with pytest.raises(OSError, match="Input/output error"):
        acquire(tmp_path / "lock")


@contextmanager
def entered(block: AbstractContextManager[object]) -> Iterator[bool]:
    """Enter a block that needs a lock; False if it is refused because another holds that."""
    with ExitStack() as stack:
        try:
            got = stack.enter_context(block)
        except (UsageError, RefusedError):
            got = False
        yield got is not False


@contextmanager
def supervising(folder: Path) -> Iterator[bool]:
    lock = take_lock(folder, timeout_seconds=0)
    yield lock is not None
    if lock is not None:
        lock.release()


LOCKED: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "the driver of a sweep": lambda folder: SweepFolder(folder).driving(),
    "a drill": workplace,
    "the reader of logs": lambda folder: log_reader_lock(RunFolder(folder)),
    "the supervisor of a run": supervising,
}


@pytest.mark.parametrize("name", LOCKED)
def test_there_is_one_of_each_kind_at_a_time(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with entered(LOCKED[name](tmp_path)) as first, entered(LOCKED[name](tmp_path)) as second:
            assert (first, second) == (True, False)
