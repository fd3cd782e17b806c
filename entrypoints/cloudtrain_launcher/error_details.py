"""Details of a rank's error, from its exception or its crash output. Standard library only.

A library may reraise an exception of another process or thread, such as a DataLoader worker's; the
original is reported. A process ended by C++ or the kernel leaves only its output: `what():` of
C++'s terminate handler, the reason of NCCL's watchdog, and faulthandler's Python stack.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from cloudtrain_wire.causes import is_consequence
from cloudtrain_wire.events import Error

MAX_MESSAGE_CHARS = 1000
MAX_TRACEBACK_CHARS = 2500
CHAIN_FRAMES = 4
"""Innermost frames of each exception of a chain that is too long."""
MAX_CODE_CHARS = 200
"""Maximum characters of each in an event."""

_RERAISED = re.compile(
    # torch._utils.ExceptionWrapper.reraise, of a DataLoader's workers, DataParallel's threads and
    # others
    r"\s*Caught \w+ (?P<where>in .+?)\.\nOriginal Traceback"
    # torch.multiprocessing.spawn: ProcessRaisedException
    r"|\s*-- Process (?P<process>\d+) terminated with the following error:\nTraceback"
)
_REMOTE_TRACEBACKS = ("RemoteTraceback", "_RemoteTraceback")
"""Classes of `__cause__` with a worker's traceback (multiprocessing.Pool, concurrent.futures)."""

_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)')

_MAX_STACK_LINES = 60
"""Maximum lines of the Python stack that a crash printed."""

_THROWN = re.compile(
    r"terminate called after throwing an instance of '(?:\w+::)*(?P<exception>\w+)'"
)
_WHAT = re.compile(r"what\(\):\s*(?P<what>.+)")
_WATCHDOG = re.compile(r"(?P<reason>Watchdog caught collective operation timeout: .+)")
_FATAL = re.compile(r"Fatal Python error: (?P<fatal>.+)")
_NOT_STARTED = re.compile(
    r"\S+: (line \d+: |\d+: )?.{1,200}: (command not found|not found|Permission denied|cannot execute.*"
    r"|No such file or directory)$"
)
"""Message of bash, dash or busybox: `run.sh: line 3: accelerate: command not found`."""
_STACK_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in ')
_STACK_LINE = re.compile(r'  File "|  <|(Current t|T)hread |Extension modules:|$|  \.\.\.')

FOLDERS = ("CLOUDTRAIN_CHECKPOINT_DIR", "CLOUDTRAIN_OUTPUT_DIR", "CLOUDTRAIN_MODEL_DIR")
FULL_BYTES = 1 << 20
"""Free space below which a disk counts as full; the failed writer may have freed some."""


class Frame(NamedTuple):
    """One line of a stack; line 0 and empty strings if unknown."""

    file: str
    line: int
    code: str


class OriginalError(NamedTuple):
    """An exception of another process or thread, parsed from its traceback."""

    exception: str
    message: str
    where: str
    """Such as `in DataLoader worker process 1`; empty if unknown."""
    frames: list[Frame]
    text: str
    """The traceback itself."""


def describe(
    error: BaseException, frames: TracebackType | None, folder: Path, payload: Path
) -> Error:
    """Return the event of an exception that ended a program.

    `frames`: its traceback without the launcher's frames. `folder`: the job's working folder. The
    error's file and line are the innermost frame of a file in `folder` that is neither below
    `payload` nor an installed package.
    """
    original = _find_original(error)
    if original is None:
        stack = []
        for item in traceback.extract_tb(frames):
            stack.append(Frame(item.filename, item.lineno or 0, item.line or ""))

        name = type(error).__name__
        message = safe_str(error)
        text = "".join(traceback.format_exception(type(error), error, frames))
        if len(text) > MAX_TRACEBACK_CHARS:  # the cause of a chain comes first
            lines = traceback.format_exception(type(error), error, frames, limit=-CHAIN_FRAMES)
            text = "".join(lines)
    else:
        stack = original.frames
        name = original.exception
        text = original.text
        message = original.message
        if original.where:
            message += f" ({original.where})"

    syntax = _syntax_error_frame(error)
    user_frames = [frame for frame in stack if is_user_code(frame.file, folder, payload)]

    if is_user_code(syntax.file, folder, payload):
        at = syntax
    else:
        at = (user_frames or stack or [syntax])[-1]

    described = Error(
        exception=name,
        message=message[:MAX_MESSAGE_CHARS],
        code=at.code.strip()[:MAX_CODE_CHARS],
        traceback=text[-MAX_TRACEBACK_CHARS:],
        consequence=is_consequence(name, message, stack[-1].file if stack else ""),
    )
    if at.file:
        return described.replace(file=display_path(at.file, folder), line=at.line)

    return described


def safe_str(value: object) -> str:
    """Return `str(value)`, or a replacement if its `__str__` raises."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  (any class, any mistake)
        return f"<its __str__ raised {type(error).__name__}>"


def display_path(file: str, folder: Path) -> str:
    """Return the path of a file, relative to `folder` if it is below it."""
    path = os.path.normpath(folder / file)
    if not path.startswith(f"{folder}{os.sep}"):
        return path

    return os.path.relpath(path, folder)


def is_user_code(file: str, folder: Path, payload: Path) -> bool:
    """Return whether a file is the program's: in the folder, not in `payload` or an environment."""
    if not file or file.startswith("<"):  # such as <frozen runpy>
        return False

    path = os.path.normpath(folder / file)
    is_below = path.startswith(f"{folder}{os.sep}")

    return is_below and "site-packages" not in path and not path.startswith(f"{payload}{os.sep}")


def _syntax_error_frame(error: BaseException) -> Frame:
    """Return the place of a SyntaxError, whose file lacks a frame in the traceback."""
    if not isinstance(error, SyntaxError):
        return Frame("", 0, "")

    file: Any = error.filename  # a program may raise one with any values
    line: Any = error.lineno
    code: Any = error.text
    if not isinstance(file, (str, bytes)):
        return Frame("", 0, "")

    return Frame(
        os.fsdecode(file),
        line if isinstance(line, int) else 0,
        code if isinstance(code, str) else "",
    )


def _find_original(error: BaseException) -> OriginalError | None:
    """Return the exception of another process or thread that this one reraises; else None."""
    arguments = [item for item in error.args if isinstance(item, str)]

    for text in (safe_str(error), *arguments):
        match = _RERAISED.match(text)
        if match:
            where = match["where"] or f"in process {match['process']}"
            return _parse_traceback(text, where)

    remote = getattr(error.__cause__, "tb", None)

    if type(error.__cause__).__name__ in _REMOTE_TRACEBACKS and isinstance(remote, str):
        original = _parse_traceback(remote.strip('\n"'), "in a worker process")
        return original and original._replace(
            exception=type(error).__name__, message=safe_str(error)
        )

    return None


def _parse_traceback(text: str, where: str) -> OriginalError | None:
    """Parse a chain's last traceback, of the exception that Python would name; None without one."""
    _, begin, block = text.rpartition(_BEGIN)
    if not begin:
        return None

    lines = block.splitlines()
    end = 0
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        end += 1

    frames = []

    for number, line in enumerate(lines[:end]):
        at = _FRAME.match(line)
        if at:
            code = ""
            if number + 1 < end and lines[number + 1].startswith("    "):
                code = lines[number + 1].strip()
            frames.append(Frame(at["file"], int(at["line"]), code))

    name, _, message = "\n".join(lines[end:]).strip().partition(":")
    exception = name.strip().rpartition(".")[2]
    if exception:
        return OriginalError(exception, message.strip(), where, frames, begin + block)

    return None


class CrashOutput:
    """Crash output of one rank."""

    def __init__(self) -> None:
        self.reason = ""
        """Message of C++ or NCCL, at most 600 characters; empty without one."""
        self.shell_reason = ""
        """Last message of a shell about a program that it cannot start; empty without one."""
        self._exception = ""
        self._stack: list[str] = []
        self._in_stack = False

    def feed(self, text: str) -> None:
        """Read the next lines of the rank's output, without the last line end."""
        for line in text.split("\n"):
            self._feed_line(line)

    def _feed_line(self, line: str) -> None:
        if self._in_stack and len(self._stack) < _MAX_STACK_LINES and _STACK_LINE.match(line):
            self._stack.append(line)
            return

        self._in_stack = False
        thrown = _THROWN.search(line)
        terminate_reason = _WHAT.search(line)
        watchdog = _WATCHDOG.search(line)
        fatal = _FATAL.search(line)

        if thrown:
            self._exception = thrown["exception"]
        elif watchdog:  # NCCL repeats it: with the rank, with a stack, as what()
            self.reason = self.reason or watchdog["reason"][:600]
        elif terminate_reason and self._exception and not self.reason:
            self.reason = f"{self._exception}: {terminate_reason['what'][:600]}"
        elif fatal:
            self._in_stack = True
            self._stack = [line]
        elif _NOT_STARTED.match(line):
            self.shell_reason = line

    @property
    def stack(self) -> str:
        """Return the printed Python stack, most recent call first; empty without one."""
        lines = [line for line in self._stack if not line.startswith("Extension modules")]
        return "\n".join(lines).strip()[:MAX_TRACEBACK_CHARS]

    def add_stack(self, error: Error, folder: Path, payload: Path) -> Error:
        """Add the stack and the program's innermost line to an error, if there is a stack.

        `folder` and `payload`: as for `describe`.
        """
        frames = list(filter(None, map(_STACK_FRAME.match, self._stack)))
        if not frames:
            return error

        # Most recent call first, and the crashed thread first.
        user_frames = [frame for frame in frames if is_user_code(frame["file"], folder, payload)]
        at = (user_frames or frames)[0]

        return at_line(error.replace(stack=self.stack), at["file"], int(at["line"]), folder)


def at_line(error: Error, file: str, line: int, folder: Path) -> Error:
    """Return the error with its place in a program, and the text of that line."""
    code = linecache.getline(str(folder / file), line).strip()[:MAX_CODE_CHARS]
    return error.replace(file=display_path(file, folder), line=line, code=code)


def full_disk_hint(error: BaseException, environ: Mapping[str, str]) -> str:
    """Name the full disk and a solution; empty if no disk is full or the cause is another."""
    if not isinstance(error, (OSError, RuntimeError)):
        return ""

    for name in FOLDERS:
        folder = environ.get(name, "")
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue

        if disk.f_blocks and disk.f_bavail * disk.f_frsize < FULL_BYTES:
            return (
                f"the disk of {folder} is full: keep fewer checkpoints (checkpoints.keep), or ask"
                " for more space (resources.disk)"
            )

    return ""
