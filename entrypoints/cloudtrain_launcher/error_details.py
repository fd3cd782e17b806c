"""The details of a rank's error: from its exception, or from what the process printed when it crashed below Python.

An exception that a library passed on as text, such as a DataLoader worker's, is reported as the original one. A process
that C++ or the kernel ends leaves no exception, only its output: `what():` of C++'s terminate handler, the reason that
NCCL's watchdog gives, and the Python stack that faulthandler prints. Standard library only.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Optional

from cloudtrain_launcher.failure import is_consequence

MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, MAX_CODE_CHARS = 1000, 2500, 200
"""Characters of each that an event carries."""


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    code: str


class OriginalError(NamedTuple):
    """An exception that was raised in another process or thread, as its traceback tells it."""

    exception: str
    message: str
    where: str
    """Such as `in DataLoader worker process 1`; empty when nobody says."""
    frames: list[Frame]
    text: str


def describe(error: BaseException, frames: Optional[TracebackType], folder: Path, payload: Path) -> dict[str, Any]:
    """The fields of its event. `frames`: its traceback without our own; `folder`: where the program lies."""
    original = _find_original(error)
    if original is None:
        stack = [Frame(item.filename, item.lineno or 0, item.line or "") for item in traceback.extract_tb(frames)]
        name, message = type(error).__name__, safe_str(error)
        told = "".join(traceback.format_exception(type(error), error, frames))
    else:
        stack, name, told = original.frames, original.exception, original.text
        message = original.message + (f" ({original.where})" if original.where else "")
    users = [frame for frame in stack if is_user_code(frame.file, folder, payload)]
    wrong = _syntax_error_frame(error)
    here = wrong if is_user_code(wrong.file, folder, payload) else (users or stack or [wrong])[-1]
    return {
        "exception": name,
        "message": message[:MAX_MESSAGE_CHARS],
        **({"file": display_path(here.file, folder), "line": here.line} if here.file else {}),
        "code": here.code.strip()[:MAX_CODE_CHARS],
        "traceback": told[-MAX_TRACEBACK_CHARS:],
        "consequence": is_consequence(name, message, stack[-1].file if stack else ""),
    }


def safe_str(value: object) -> str:
    """`str(value)`; a class whose `__str__` raises does not hide that there was an error."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  (any class, any mistake)
        return f"<its __str__ raised {type(error).__name__}>"


def display_path(file: str, folder: Path) -> str:
    """A file below the program's folder as seen from there, any other by its whole path."""
    whole = os.path.normpath(folder / file)
    return os.path.relpath(whole, folder) if whole.startswith(f"{folder}{os.sep}") else whole


def is_user_code(file: str, folder: Path, payload: Path) -> bool:
    """In the job's working folder, and neither ours nor in an environment installed inside it."""
    whole = os.path.normpath(folder / file) if file else ""
    inside = whole.startswith(f"{folder}{os.sep}")
    return inside and "site-packages" not in whole and not whole.startswith(f"{payload}{os.sep}")


def _syntax_error_frame(error: BaseException) -> Frame:
    """Where a SyntaxError is: in a file that has no frame of its own."""
    if not isinstance(error, SyntaxError):
        return Frame("", 0, "")
    file, line, code = (getattr(error, name, None) for name in ("filename", "lineno", "text"))
    if not isinstance(file, (str, bytes)):
        return Frame("", 0, "")
    return Frame(os.fsdecode(file), line if isinstance(line, int) else 0, code if isinstance(code, str) else "")


_RERAISED = re.compile(
    # torch._utils.ExceptionWrapper.reraise, of a DataLoader's workers, DataParallel's threads and others
    r"\s*Caught \w+ (?P<where>in .+?)\.\nOriginal Traceback"
    # torch.multiprocessing.spawn: ProcessRaisedException
    r"|\s*-- Process (?P<process>\d+) terminated with the following error:\nTraceback"
)
_REMOTE_TRACEBACKS = ("RemoteTraceback", "_RemoteTraceback")
"""The causes by which multiprocessing.Pool and concurrent.futures hand a traceback on."""

_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)')


def _find_original(error: BaseException) -> Optional[OriginalError]:
    """The exception that this one only passes on; None when it is its own."""
    arguments = [item for item in error.args if isinstance(item, str)]
    for text in (safe_str(error), *arguments):
        found = _RERAISED.match(text)
        if found:
            where = found["where"] or f"in process {found['process']}"
            return _parse_traceback(text, where)
    remote = getattr(error.__cause__, "tb", None)
    if type(error.__cause__).__name__ in _REMOTE_TRACEBACKS and isinstance(remote, str):
        original = _parse_traceback(remote.strip('\n"'), "in a worker process")
        return original and original._replace(exception=type(error).__name__, message=safe_str(error))
    return None


def _parse_traceback(text: str, where: str) -> Optional[OriginalError]:
    """Take a traceback apart: the last of a chain, which is the one that Python itself would name."""
    _, begin, block = text.rpartition(_BEGIN)
    if not begin:
        return None
    lines = block.splitlines()
    end = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    frames = []
    for number, line in enumerate(lines[:end]):
        at = _FRAME.match(line)
        if at:
            code = lines[number + 1].strip() if number + 1 < end and lines[number + 1].startswith("    ") else ""
            frames.append(Frame(at["file"], int(at["line"]), code))
    name, _, message = "\n".join(lines[end:]).strip().partition(":")
    exception = name.strip().rpartition(".")[2]
    return OriginalError(exception, message.strip(), where, frames, begin + block) if exception else None


_MAX_STACK_LINES = 60
"""Lines of a stack that are kept."""

_THROWN = re.compile(r"terminate called after throwing an instance of '(?:\w+::)*(?P<kind>\w+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(?P<what>.+)")
_WATCHDOG = re.compile(r"(?P<why>Watchdog caught collective operation timeout: .+)")
_FATAL = re.compile(r"Fatal Python error: (?P<fatal>.+)")
_STACK_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in ')
_STACK_LINE = re.compile(r'  File "|  <|(Current t|T)hread |Extension modules:|$|  \.\.\.')


class CrashOutput:
    """Listens to the lines of one rank."""

    def __init__(self) -> None:
        self.reason = ""
        """The reason as C++ or NCCL gave it; empty: none."""
        self._exception = ""
        self._stack: list[str] = []
        self._in_stack = False

    def feed(self, line: str) -> None:
        """One more line."""
        if self._in_stack and len(self._stack) < _MAX_STACK_LINES and _STACK_LINE.match(line):
            self._stack.append(line)
            return
        self._in_stack = False
        thrown, what, watchdog, fatal = (pattern.search(line) for pattern in (_THROWN, _WHAT, _WATCHDOG, _FATAL))
        if thrown:
            self._exception = thrown["kind"]
        elif watchdog:  # NCCL gives it several times: with the rank, with a stack, as what()
            self.reason = self.reason or watchdog["why"][:600]
        elif what and self._exception and not self.reason:
            self.reason = f"{self._exception}: {what['what'][:600]}"
        elif fatal:
            self._in_stack, self._stack = True, [line]

    @property
    def stack(self) -> str:
        """The Python stack, most recent call first; empty: none was printed."""
        lines = [line for line in self._stack if not line.startswith("Extension modules")]
        return "\n".join(lines).strip()[:MAX_TRACEBACK_CHARS]

    def fields(self, folder: Path, payload: Path) -> dict[str, Any]:
        """What there is to add to the error of this rank's death: the stack, and its line of the program's own."""
        found = [(frame["file"], int(frame["line"])) for frame in map(_STACK_FRAME.match, self._stack) if frame]
        if not found:
            return {}
        # Most recent call first, of the thread that died before all others.
        file, line = next((at for at in found if is_user_code(at[0], folder, payload)), found[0])
        code = linecache.getline(str(folder / file), line).strip()
        return {"file": display_path(file, folder), "line": line, "code": code[:MAX_CODE_CHARS], "stack": self.stack}
