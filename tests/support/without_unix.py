"""Commands as on Windows; run as a script.

The disk, its paths and the programs stay this machine's.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
NAMES = {
    os: (
        *("chown", "chroot", "confstr", "ctermid", "fchdir", "fchmod", "fchown", "fork", "forkpty"),
        *(
            "fstatvfs",
            "fwalk",
            "getegid",
            "geteuid",
            "getgid",
            "getgroups",
            "getloadavg",
            "getpgid",
        ),
        *("getpgrp", "getpriority", "getsid", "getuid", "initgroups", "killpg", "lchown", "mkfifo"),
        *("mknod", "nice", "openpty", "pathconf", "pidfd_open", "posix_fadvise", "posix_fallocate"),
        *("posix_spawn", "pread", "pwrite", "readv", "sched_getaffinity", "sched_setaffinity"),
        *("sendfile", "setpgid", "setpriority", "setsid", "sethostname", "setuid", "statvfs"),
        *("sync", "sysconf", "tcgetpgrp", "ttyname", "uname", "wait", "wait3", "wait4", "writev"),
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "O_SYNC", "SEEK_DATA"),
        *("SEEK_HOLE", "WNOHANG", "WUNTRACED"),
    ),
    signal: (
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGXCPU", "SIGXFSZ", "alarm", "pause"),
        *("pthread_kill", "pthread_sigmask", "setitimer", "sigtimedwait", "sigwait"),
    ),
    socket: ("AF_UNIX", "socketpair", "sethostname"),
    time: ("clock_gettime", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME", "tzset"),
}

NO_CLIENT = ("cloudtrain.__main__", "cloudtrain.providers.docker.node", "cloudtrain.sweeps.ray.")
"""Programs, and the driver on Ray."""

LIBRARIES = (
    *("asyncio", "concurrent.futures.process", "getpass", "multiprocessing.util", "shutil", "ssl"),
    *("subprocess", "tempfile", "uuid", "zoneinfo", "azure.identity._credentials.azure_cli"),
)
"""Python's own modules, and the login of Azure's CLI: they stay this system's."""
SDKS = ("boto3", "azure.ai.ml", "azure.storage.blob", "click", "yaml", "pydantic")


def windows_locks() -> ModuleType:
    """Return an imitation of msvcrt: locks of bytes, by which file they were opened as."""
    import fcntl
    import struct

    lock = fcntl.fcntl
    command = fcntl.F_OFD_SETLK

    def locking(file: int, mode: int, length: int) -> None:
        start = os.lseek(file, 0, os.SEEK_CUR)
        if not lock(file, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
            writable = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
            os.dup2(writable, file)
            os.close(writable)

        try:
            lock(file, command, struct.pack("hhqqi4x", mode, os.SEEK_SET, start, length, 0))
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error

    module = ModuleType("msvcrt")
    module.__dict__.update(LK_NBLCK=fcntl.F_WRLCK, locking=locking)
    return module


def rename_of_windows(rename: Callable[..., None]) -> Callable[..., None]:
    """Return a rename that refuses a folder with an open file of this process."""

    def rename_closed(source: Any, target: Any) -> None:
        held = [file.resolve() for file in Path("/proc/self/fd").iterdir()]
        if any(Path(source).resolve() in path.parents for path in held):
            raise PermissionError(13, "a file in the folder is open", str(source))
        if Path(target).exists():
            raise FileExistsError(17, "it exists", str(source))

        rename(source, target)

    return rename_closed


class Listing:
    """A listing of a folder whose entries do not know their inodes."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *error: object) -> None:
        self._entries.close()

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> Any:
        entry = next(self._entries)

        def status(*, follow_symlinks: bool = True) -> os.stat_result:
            info = entry.stat(follow_symlinks=follow_symlinks)
            return os.stat_result((info[0], 0, 0, 0, *info[4:]))

        names = ("name", "path", "is_dir", "is_file", "is_symlink")
        return SimpleNamespace(**{name: getattr(entry, name) for name in names}, stat=status)


def copy_of(module: ModuleType) -> ModuleType:
    """Return a whole copy of a module."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    return copy


def take_away() -> None:
    """Make this system look like Windows, except to Python's own modules."""
    locks = windows_locks()
    scandir = os.scandir
    kept = {id(module): copy_of(module) for module in (*NAMES, sys)}
    for name in (*LIBRARIES, *SDKS):  # they look at the system when they are imported
        library = vars(importlib.import_module(name))
        if name in LIBRARIES:
            library.update(
                {key: kept[id(value)] for key, value in library.items() if id(value) in kept}
            )

    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in NAMES.items():
        for name in names:
            module.__dict__.pop(name, None)

    sys.modules["msvcrt"] = locks
    sys.platform = "win32"
    os.__dict__.update(
        O_BINARY=0,
        rename=rename_of_windows(os.rename),
        scandir=lambda path=".": Listing(scandir(path)),
    )


def import_all() -> None:
    """Import every module of the client."""
    import cloudtrain

    for module in pkgutil.walk_packages(cloudtrain.__path__, "cloudtrain."):
        if not module.name.startswith(NO_CLIENT):
            importlib.import_module(module.name)


def run(words: list[str]) -> tuple[Any, str, str]:
    """Run a command. Return its exit code and its output."""
    from cloudtrain.cli import main as command_line

    code: Any = None
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            command_line(words)
        except SystemExit as end:
            code = end.code

    return code, out.getvalue(), err.getvalue()


def main() -> None:
    """Run the commands of a JSON list, and print code and output of each in one; none: import all."""
    if sys.platform == "linux":  # which imitates Windows
        take_away()

    warnings.filterwarnings("error", category=EncodingWarning, module="cloudtrain")
    commands = json.loads(sys.argv[1])
    if not commands:
        import_all()

    json.dump([run(words) for words in commands], sys.stdout)


if __name__ == "__main__":
    main()
