"""Locks of files by flock, and those of Windows: its own there, or an imitation of them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore
from cloudtrain_wire import file_locks
from cloudtrain_wire.file_locks import FileLock, acquire, is_locked, locked
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.usefixtures("system")


@pytest.fixture(params=["this system", "Windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock by this system, and as on Windows."""
    if request.param == "Windows" and sys.platform == "linux":
        from tests.support.without_unix import windows_locks

        monkeypatch.setattr(file_locks, "msvcrt", windows_locks(), raising=False)
        monkeypatch.setattr(sys, "platform", "win32")
    elif request.param == "Windows":
        pytest.skip("Linux imitates it; on Windows it is this system")


def held(lock: FileLock | None) -> FileLock:
    assert lock is not None
    return lock


def test_a_lock_keeps_others_out_and_its_content_readable(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = held(acquire(path))
    os.write(lock.file, b"who\n")

    assert path.read_bytes() == b"who\n"
    assert is_locked(path) is True
    assert acquire(path, wait=False) is None
    assert acquire(path, wait=False, shared=True) is None
    lock.release()
    assert is_locked(path) is False


def test_readers_share_a_lock_that_a_writer_does_not_get(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = held(acquire(path, shared=True))
    second = held(acquire(path, shared=True))
    assert is_locked(path) is False

    first.release()
    assert acquire(path, wait=False) is None
    second.release()
    held(acquire(path, wait=False)).release()


def test_a_writer_waits_for_the_last_reader(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reader = held(acquire(path, shared=True))
    is_waiting = threading.Event()
    has_lock = threading.Event()

    def write() -> None:
        with locked(path, on_wait=is_waiting.set):
            has_lock.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert is_waiting.wait(HANG_SECONDS)
    assert not has_lock.is_set()

    reader.release()
    writer.join(HANG_SECONDS)
    assert has_lock.is_set()


def test_a_new_run_counts_as_being_submitted_until_its_lock_is_released(tmp_path: Path) -> None:
    locks: list[FileLock] = []
    run = RunStore(tmp_path).create("one", {"plan.json": "{}"}, submit_lock=locks)
    assert is_locked(run.path / "submit.lock") is True
    assert run.is_being_submitted()

    locks[0].release()
    assert RunFolder(run.path).is_being_submitted() == (sys.platform == "win32")
    os.utime(run.path / "submit.lock", (0, 0))
    assert not run.is_being_submitted()
