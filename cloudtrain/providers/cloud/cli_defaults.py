"""What the clouds' own command lines are set to: their files, read as plain text. No SDK, no process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

Found = tuple[str, str]
"""A value, and where it is said, for people: `~/.aws/config:2`."""

_SECTION = re.compile(r"\[\s*(.*?)\s*\]")
_VALUE = re.compile(r"([\w.-]+)\s*[=:]\s*(.*?)\s*$")


def ini_value(path: Path, section: str, key: str) -> Found | None:
    """The value of a key in a section of an INI file; None where there is none, or no file that can be read."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    here = ""
    for number, line in enumerate(lines, 1):
        if header := _SECTION.match(line):
            here = re.sub(r"""["']""", "", header[1])  # [profile "my own"] is `profile my own`
        elif here == section and (found := _VALUE.match(line)) and found[1] == key:
            value = re.split(r"\s[#;]", found[2])[0].strip()
            return (value, f"{in_words(path)}:{number}") if value else None
    return None


def in_words(path: Path) -> str:
    """A path with the home folder as `~`."""
    home = str(Path.home())
    return "~" + str(path)[len(home) :] if str(path).startswith(f"{home}/") else str(path)


def variable(environ: Mapping[str, str], name: str) -> Found | None:
    """The value of a variable; None where it is empty or not set."""
    return (environ[name], f"environment {name}") if environ.get(name) else None
