"""Files on this machine: locks, permissions, limits of size, and free ports."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.errors import RefusedError, UsageError
from cloudtrain.providers.local.processes import SupervisorState, supervisor_state, take_lock
from cloudtrain.providers.local.supervisor import Supervisor
from cloudtrain.providers.rehearsal.base import unpack
from cloudtrain.runs.files import restrict_permissions
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History, log_reader_lock
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.store import RunStore, summaries
from cloudtrain.runs.summary import index_run
from cloudtrain.source.pack import pack
from cloudtrain.source.scan import scan
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain_wire import file_locks
from cloudtrain_wire.bounded_files import FileTooLarge, read_regular_file, read_regular_text
from cloudtrain_wire.events import Ended, Submitting
from cloudtrain_wire.file_locks import FileLock, acquire, is_locked, locked
from cloudtrain_wire.ports import free_port
from tests.repo.tools import ROOT
from tests.support.samples import write
from tests.support.waiting import HANG_SECONDS

# Files on this machine are private to one user whatever the umask, including those an earlier
# version left open.


@pytest.fixture(params=[0o022, 0o000], ids=["the usual umask", "none"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(top: Path) -> list[str]:
    return [
        str(path.relative_to(top))
        for path in (top, *top.rglob("*"))
        if path.lstat().st_mode & 0o077
    ]


SUBMITTING = Submitting(
    time=1.0, name="a", provider="local", contract="plain", nodes=1, processes=1
)


def test_everything_in_the_data_folder_is_private(umask: None, tmp_path: Path) -> None:
    data = tmp_path / "share" / "cloudtrain"
    source = write(tmp_path / "job", {"train.py": "", "pkg/run.sh": "", "key": "secret"})
    (source / "key").chmod(0o600)
    (source / "pkg" / "run.sh").chmod(0o755)
    held: list[FileLock] = []
    store = RunStore(data)
    run = store.create("a-1", {"plan.json": "{}", "request.json": "{}"}, SUBMITTING, held)
    held[0].release()
    run.append(Ended(time=2.0, state="succeeded"))
    index_run(run, History(run).read())
    archive = pack(scan(source, None, data / "cache"), data / "sources")
    unpack(archive, run.path / "nodes" / "0" / "source")
    assert summaries(store)[0]["state"] == "succeeded"
    assert open_to_others(tmp_path / "share") == []
    assert os.access(run.path / "nodes/0/source/pkg/run.sh", os.X_OK)


def test_what_an_earlier_version_left_open_is_closed_at_the_next_look(
    umask: None, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {"runs/a-1/plan.json": "{}", "sources/x.tar.gz": "", "index.jsonl": "", "mine/file": ""},
    )
    for path in ("runs", "sources", "mine", "mine/file"):
        (tmp_path / path).chmod(0o755)
    assert RunStore(tmp_path).ids() == ["a-1"]
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777
        for name in ("runs", "sources", "mine", "mine/file")
    }
    assert modes == {"runs": 0o700, "sources": 0o700, "mine": 0o755, "mine/file": 0o755}
    assert not (tmp_path / "index.jsonl").stat().st_mode & 0o077


def test_a_link_and_what_belongs_to_somebody_else_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("elsewhere", "data/sources"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "data" / "runs").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    restrict_permissions(tmp_path / "data")
    assert (tmp_path / "data" / "sources").stat().st_mode & 0o777 == 0o755
    monkeypatch.undo()
    restrict_permissions(tmp_path / "data")
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "data" / "sources").stat().st_mode & 0o777 == 0o700


# Locks on files keep processes apart, and end with their process.

IMPORT = (
    "import sys; sys.path[0] = sys.argv[1]; from pathlib import Path; path = Path(sys.argv[2])\n"
)


IMPORT += "from cloudtrain_wire.file_locks import acquire, locked\n"
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
    "the reader of logs": lambda folder: log_reader_lock(RunFolder(folder)),
    "the supervisor of a run": supervising,
}


@pytest.mark.parametrize("name", LOCKED)
def test_there_is_one_of_each_kind_at_a_time(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with entered(LOCKED[name](tmp_path)) as first, entered(LOCKED[name](tmp_path)) as second:
            assert (first, second) == (True, False)


# The local provider's parts: the lock that tells life from death, and ports that stay free.


def test_a_look_at_a_run_never_costs_the_supervisor_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunPaths(tmp_path).lock.open("w") as observer:
        fcntl.flock(observer, fcntl.LOCK_SH)
        assert supervisor_state(tmp_path) is SupervisorState.NOT_STARTED
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(observer, fcntl.LOCK_UN))
        lock = take_lock(tmp_path, timeout_seconds=-1)
    assert lock is not None
    assert is_locked(RunPaths(tmp_path).lock)
    lock.release()


def test_a_free_port_can_be_bound_and_is_not_handed_out_twice() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports[0]))


def test_a_free_port_has_a_free_port_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    below = free_port()
    bound: list[int] = []

    class Offered(socket.socket):
        """A socket of a system that first offers the port below the neighbour's."""

        def bind(self, address: Any) -> None:
            interface, port = address
            super().bind((interface, port if bound else below))
            bound.append(self.getsockname()[1])

    with socket.socket() as neighbour:
        neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        neighbour.bind(("127.0.0.1", below + 1))
        monkeypatch.setattr(socket, "socket", Offered)
        port = free_port()

    assert bound[0] == below
    assert port != below, "the neighbour's port is not free"
    assert bound[-3:] == [port, port + 1, port + 1], "looked at, then reserved"


def test_checkpoints_that_cannot_be_kept_now_end_no_training_and_are_kept_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = json.loads((ROOT / "tests" / "golden" / "aws-kept.json").read_text())["request"]
    (tmp_path / "request.json").write_text(json.dumps(request))
    (tmp_path / "plan.json").write_text(
        json.dumps({"provider": "local", "target": {"contract": "sagemaker"}})
    )
    saved = tmp_path / "nodes" / "0" / "ml" / "checkpoints" / "step-1"
    saved.parent.mkdir(parents=True)
    saved.write_text("weights")
    supervisor = Supervisor(tmp_path, tmp_path / "source.tar.gz", [])

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full_disk)
        supervisor.sync()
    assert "checkpoints not kept" in capfd.readouterr().err
    supervisor.sync()
    assert (tmp_path / "checkpoints" / "step-1").read_text() == "weights"


# Files of a foreign folder are read up to a limit, and only if they are regular files.


def test_a_regular_file_is_read_whole_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_regular_file(tmp_path / "a", 10) == b"x" * 10
    with pytest.raises(FileTooLarge, match=r"File too large \(limit 9 bytes\)"):
        read_regular_file(tmp_path / "a", 9)


def test_a_link_is_followed_only_if_its_reader_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    assert read_regular_file(tmp_path / "b") == b"x"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular_file(tmp_path / "b", follow=False)


def test_text_has_no_mark_and_plain_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffä\r\nb\rc\n".encode())
    assert read_regular_text(tmp_path / "a") == "ä\nb\nc\n"
