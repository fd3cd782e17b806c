"""What a rank printed in the moment in which it died below Python: the reason and the stack. Standard library only.

A process that C++ or the kernel ends leaves no exception. What it leaves is in its log: `what():` of C++'s last
handler, the reason that NCCL's watchdog gives, and the Python stack that faulthandler prints.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

from cloudtrain_launcher.reporting import LONGEST_CODE, LONGEST_TRACEBACK, is_users, shown

_LONGEST_STACK = 60
"""Lines of a stack that are kept."""

_THROWN = re.compile(r"terminate called after throwing an instance of '(?:\w+::)*(?P<kind>\w+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(?P<what>.+)")
_WATCHDOG = re.compile(r"(?P<why>Watchdog caught collective operation timeout: .+)")
_FATAL = re.compile(r"Fatal Python error: (?P<fatal>.+)")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in ')
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
        found = [(frame["file"], int(frame["line"])) for frame in map(_FRAME.match, self._stack) if frame]
        if not found:
            return {}
        # Most recent call first, of the thread that died before all others.
        file, line = next((at for at in found if is_users(at[0], folder, payload)), found[0])
        code = linecache.getline(str(folder / file), line).strip()
        return {"file": shown(file, folder), "line": line, "code": code[:LONGEST_CODE], "stack": self.stack}
