"""File locks, also on disks without flock(2). Standard library only; the client shares this file.

The kernel's lock comes first: it ends with its process. A disk without locks (NFS without its lock
service, Lustre without the option, many FUSE disks) gets a replacement: a folder `.NAME.held`
beside the file, with one empty file named after the process that owns the lock.

- Acquire: fill a draft folder, rename it to `.NAME.held`. rename(2) fails while it has an owner.
- Take over from a dead owner: rename its file. Only one of two finds it under its old name.
- Show life: the owner's file gets a new time every HEARTBEAT_SECONDS.

An owner on this machine is dead if its process is. An owner that cannot be inspected from here is
dead after SILENCE_SECONDS without a new time. A disk is expected to have locks for all processes or
for none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from cloudtrain_launcher.process_identity import ProcessIdentity

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors of flock(2) on a disk without locks."""

HEARTBEAT_SECONDS = 5
SILENCE_SECONDS = 150
"""Longer than NFS may show an old time (nfs(5), acregmax: 60 s)."""

_POLL_SECONDS = 0.05
_FILE_MODE = 0o600


class FileLock:
    """A lock held until `release` or the end of the process. `file`: the open file."""

    def __init__(self, file: int, owner: _Owner | None) -> None:
        self.file = file
        self._owner = owner

    def release(self) -> None:
        """Release the lock and close the file."""
        if self._owner is not None:
            self._owner.leave()
        os.close(self.file)


def acquire(
    path: Path,
    *,
    wait: bool = True,
    flags: int = os.O_RDWR,
    on_wait: Callable[[], None] = lambda: None,
) -> FileLock | None:
    """Open a file, creating it if necessary, and lock it.

    Return None if another process holds the lock and `wait` is false. `flags`: how to open the
    file. `on_wait`: called once before waiting. Raise OSError if the disk fails.
    """
    file = os.open(path, flags | os.O_CREAT, _FILE_MODE)
    try:
        owner: _Owner | None = None
        try:
            is_held = _flock(file, wait, on_wait)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            owner = _become_owner(path, wait, on_wait)
            is_held = owner is not None
    except BaseException:
        os.close(file)
        raise
    if not is_held:
        os.close(file)
        return None
    return FileLock(file, owner)


@contextmanager
def locked(
    path: Path, *, flags: int = os.O_RDWR, on_wait: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Hold the lock of a file inside the block; yield the open file. Raise OSError."""
    lock = acquire(path, flags=flags, on_wait=on_wait)
    assert lock is not None  # noqa: S101  (it has waited)
    try:
        yield lock.file
    finally:
        lock.release()


def is_locked(path: Path) -> bool | None:
    """Return whether any process holds the lock of a file; None if unknown.

    Unknown: no such file, a disk without locks and without a `.held` folder, or a silent owner that
    cannot be inspected from here. On a network disk whose locks count on one machine only, False
    ignores other machines.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _has_owner(path)
    finally:
        os.close(file)
    return False


def disk_time(folder: Path) -> float:
    """Return the disk's time, which may be another machine's; else this machine's."""
    try:
        import tempfile  # rarely needed, and slow to import

        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _flock(file: int, wait: bool, on_wait: Callable[[], None]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            return False
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)
    return True


class _Owner:
    """This process as the owner of a `.held` folder. The folder may be moved meanwhile."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._name = name
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._show_life, daemon=True, name="lock heartbeat")
        self._thread.start()

    def leave(self) -> None:
        """Release the lock."""
        self._left.set()
        self._thread.join()
        with suppress(OSError):  # taken over, or the folder was removed
            os.unlink(self._name, dir_fd=self._folder)
            self._path.rmdir()
        os.close(self._folder)

    def _show_life(self) -> None:
        while not self._left.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(self._name, dir_fd=self._folder)


def stand_in(path: Path) -> Path:
    """Return the folder that replaces a file's lock on a disk without locks."""
    return path.with_name(f".{path.name}.held")


def _become_owner(path: Path, wait: bool, on_wait: Callable[[], None]) -> _Owner | None:
    folder = stand_in(path)
    name = _own_name()
    is_waiting = False
    while True:
        if _try_to_own(folder, name):
            return _Owner(folder, name)
        if not wait:
            return None
        if not is_waiting:
            on_wait()
            is_waiting = True
        time.sleep(_POLL_SECONDS)


def _try_to_own(folder: Path, name: str) -> bool:
    """Put this process's name into the folder, unless a living owner holds it."""
    owner = _owner_in(folder)
    if owner is None:
        return _make_own(folder, name)
    if _is_alive(folder, owner) is True:
        return False
    try:
        os.utime(folder / owner)  # before the rename, so that the new name is never silent
        (folder / owner).rename(folder / name)
    except FileNotFoundError:  # the owner has left, or another process was faster
        return False
    return True


def _make_own(folder: Path, name: str) -> bool:
    draft = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}")
    draft.mkdir(0o700)
    try:
        os.close(os.open(draft / name, os.O_WRONLY | os.O_CREAT, _FILE_MODE))
        with suppress(OSError):  # an empty folder, which some disks do not replace
            folder.rmdir()
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _owner_in(folder: Path) -> str | None:
    """Return the name of the owner's file; None without one."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return None
    return next((name for name in names if name.count(".") == _FIELDS - 1), None)


def _has_owner(path: Path) -> bool | None:
    folder = stand_in(path)
    try:
        owner = _owner_in(folder)
        if owner is not None:
            return _is_alive(folder, owner)
    except OSError:
        return None
    return False if folder.is_dir() else None


_FIELDS = 6


def _own_name() -> str:
    """Return a name for this process and one lock, short enough for every disk."""
    identity = ProcessIdentity.of(os.getpid())
    fields = [*_place(identity), str(identity.pid), identity.start or "0", os.urandom(4).hex()]
    return ".".join(fields)


def _place(identity: ProcessIdentity) -> list[str]:
    texts = (identity.host, identity.boot, identity.pid_namespace)
    return [sha256(text.encode(errors="surrogateescape")).hexdigest()[:12] for text in texts]


def _identity(name: str) -> ProcessIdentity | None:
    """Return the owner by its name, if its process can be inspected from here."""
    this_process = ProcessIdentity.of(os.getpid())
    host, boot, namespace, pid, start, _ = name.split(".")
    if [host, boot, namespace] != _place(this_process) or not pid.isdigit():
        return None
    start = "" if start == "0" else start
    return ProcessIdentity(
        this_process.host, this_process.boot, this_process.pid_namespace, int(pid), start
    )


def _is_alive(folder: Path, name: str) -> bool | None:
    """Return whether an owner lives; None if it is silent and cannot be inspected from here."""
    owner = _identity(name)
    alive = owner.is_alive() if owner is not None else None
    if alive is not None:
        return alive
    host, boot = _place(ProcessIdentity.of(os.getpid()))[:2]
    owner_host, owner_boot = name.split(".")[:2]
    if owner_host == host and owner_boot != boot:  # before this machine's last start
        return False
    try:
        shown = (folder / name).stat().st_mtime
    except FileNotFoundError:
        return False
    return True if disk_time(folder.parent) - shown < SILENCE_SECONDS else None
