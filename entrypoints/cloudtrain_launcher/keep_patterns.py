"""Patterns of `keep:` in job.yaml for files of a working folder. Standard library only.

The client imports this file too, to compare the patterns with the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


class KeepPattern:
    """A pattern below the working folder: `snapshot.pt`, `out-*/`, `runs/*/best.pt`, `**/*.ckpt`.

    `*`, `?` and `[…]` stay within one name; `**` matches any number of folders. A matching folder
    includes its whole content; a pattern with a slash at its end matches folders only.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = [part for part in text.split("/") if part not in ("", ".")]
        self._folders_only = text.endswith("/")

    def covers(self, path: str) -> bool:
        """Return whether a file matches. `path`: relative, with `/` between its parts."""
        parts = path.split("/")
        depths = range(1, len(parts) + (0 if self._folders_only else 1))
        return any(_matches(self._parts, parts[:depth]) for depth in depths)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[start:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(pattern[1:], parts[1:])
