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

LONGEST_MESSAGE, LONGEST_TRACEBACK, LONGEST_CODE = 1000, 2500, 200
"""Characters of each that an event carries."""


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    code: str


class Original(NamedTuple):
    """An exception that was raised in another process or thread, as its traceback tells it."""

    exception: str
    message: str
    where: str
    """Such as `in DataLoader worker process 1`; empty when nobody says."""
    frames: list[Frame]
    text: str


def describe(error: BaseException, frames: Optional[TracebackType], folder: Path, payload: Path) -> dict[str, Any]:
    """The fields of its event. `frames`: its traceback without our own; `folder`: where the program lies."""
    original = _original(error)
    if original is None:
        stack = [Frame(item.filename, item.lineno or 0, item.line or "") for item in traceback.extract_tb(frames)]
        name, message = type(error).__name__, text_of(error)
        told = "".join(traceback.format_exception(type(error), error, frames))
    else:
        stack, name, told = original.frames, original.exception, original.text
        message = original.message + (f" ({original.where})" if original.where else "")
    users = [frame for frame in stack if is_users(frame.file, folder, payload)]
    wrong = _of_syntax(error)
    here = wrong if is_users(wrong.file, folder, payload) else (users or stack or [wrong])[-1]
    return {
        "exception": name,
        "message": message[:LONGEST_MESSAGE],
        **({"file": shown(here.file, folder), "line": here.line} if here.file else {}),
        "code": here.code.strip()[:LONGEST_CODE],
        "traceback": told[-LONGEST_TRACEBACK:],
        "consequence": is_consequence(name, message, stack[-1].file if stack else ""),
    }


def text_of(value: object) -> str:
    """`str(value)`; a class whose `__str__` raises does not hide that there was an error."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  (any class, any mistake)
        return f"<its __str__ raised {type(error).__name__}>"


def shown(file: str, folder: Path) -> str:
    """A file below the program's folder as seen from there, any other by its whole path."""
    whole = os.path.normpath(folder / file)
    return os.path.relpath(whole, folder) if whole.startswith(f"{folder}{os.sep}") else whole


def is_users(file: str, folder: Path, payload: Path) -> bool:
    """In the job's working folder, and neither ours nor in an environment installed inside it."""
    whole = os.path.normpath(folder / file) if file else ""
    inside = whole.startswith(f"{folder}{os.sep}")
    return inside and "site-packages" not in whole and not whole.startswith(f"{payload}{os.sep}")


def _of_syntax(error: BaseException) -> Frame:
    """Where a SyntaxError is: in a file that has no frame of its own."""
    if not isinstance(error, SyntaxError):
        return Frame("", 0, "")
    file, line, code = (getattr(error, name, None) for name in ("filename", "lineno", "text"))
    if not isinstance(file, (str, bytes)):
        return Frame("", 0, "")
    return Frame(os.fsdecode(file), line if isinstance(line, int) else 0, code if isinstance(code, str) else "")


_PASSED_ON = re.compile(
    # torch._utils.ExceptionWrapper.reraise, of a DataLoader's workers, DataParallel's threads and others
    r"\s*Caught \w+ (?P<where>in .+?)\.\nOriginal Traceback"
    # torch.multiprocessing.spawn: ProcessRaisedException
    r"|\s*-- Process (?P<process>\d+) terminated with the following error:\nTraceback"
)
_REMOTE = ("RemoteTraceback", "_RemoteTraceback")
"""The causes by which multiprocessing.Pool and concurrent.futures hand a traceback on."""

_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)')


def _original(error: BaseException) -> Optional[Original]:
    """The exception that this one only passes on; None when it is its own."""
    arguments = [item for item in error.args if isinstance(item, str)]
    for text in (text_of(error), *arguments):
        found = _PASSED_ON.match(text)
        if found:
            where = found["where"] or f"in process {found['process']}"
            return _read(text, where)
    remote = getattr(error.__cause__, "tb", None)
    if type(error.__cause__).__name__ in _REMOTE and isinstance(remote, str):
        original = _read(remote.strip('\n"'), "in a worker process")
        return original and original._replace(exception=type(error).__name__, message=text_of(error))
    return None


def _read(text: str, where: str) -> Optional[Original]:
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
    return Original(exception, message.strip(), where, frames, begin + block) if exception else None


_LONGEST_STACK = 60
"""Lines of a stack that are kept."""

_THROWN = re.compile(r"terminate called after throwing an instance of '(?:\w+::)*(?P<kind>\w+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(?P<what>.+)")
_WATCHDOG = re.compile(r"(?P<why>Watchdog caught collective operation timeout: .+)")
_FATAL = re.compile(r"Fatal Python error: (?P<fatal>.+)")
_STACK_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in ')
_PRINTED = re.compile(r'  File "|  <|(Current t|T)hread |Extension modules:|$|  \.\.\.')


class LastWords:
    """Listens to the lines of one rank."""

    def __init__(self) -> None:
        self.why = ""
        """The reason as C++ or NCCL gave it; empty: none."""
        self._kind = ""
        self._stack: list[str] = []
        self._fatal = False

    def hear(self, line: str) -> None:
        """One more line."""
        if self._fatal and len(self._stack) < _LONGEST_STACK and _PRINTED.match(line):
            self._stack.append(line)
            return
        self._fatal = False
        thrown, what, watchdog, fatal = (pattern.search(line) for pattern in (_THROWN, _WHAT, _WATCHDOG, _FATAL))
        if thrown:
            self._kind = thrown["kind"]
        elif watchdog:  # NCCL gives it several times: with the rank, with a stack, as what()
            self.why = self.why or watchdog["why"][:600]
        elif what and self._kind and not self.why:
            self.why = f"{self._kind}: {what['what'][:600]}"
        elif fatal:
            self._fatal, self._stack = True, [line]

    @property
    def stack(self) -> str:
        """The Python stack, most recent call first; empty: none was printed."""
        lines = [line for line in self._stack if not line.startswith("Extension modules")]
        return "\n".join(lines).strip()[:LONGEST_TRACEBACK]

    def fields(self, folder: Path, payload: Path) -> dict[str, Any]:
        """What there is to add to the error of this rank's death: the stack, and its line of the program's own."""
        found = [(frame["file"], int(frame["line"])) for frame in map(_STACK_FRAME.match, self._stack) if frame]
        if not found:
            return {}
        # Most recent call first, of the thread that died before all others.
        file, line = next((at for at in found if is_users(at[0], folder, payload)), found[0])
        code = linecache.getline(str(folder / file), line).strip()
        return {"file": shown(file, folder), "line": line, "code": code[:LONGEST_CODE], "stack": self.stack}
