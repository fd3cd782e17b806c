"""Writes the settings of a deployment into a cloudtrain.toml: everything else in it stays as it is."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.bounded_files import read_regular_text
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.infrastructure import SettingValue

_HEADER = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]\s*(#.*)?""")


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsEdit:
    """What a file is and what it would become."""

    path: Path
    before: str
    after: str

    @property
    def is_empty(self) -> bool:
        """Whether the file has these settings already."""
        return self.before == self.after

    def diff(self) -> list[str]:
        """The lines that go (`- `) and come (`+ `), with those around them."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), lineterm="", n=1
        )
        return [
            f"{line[0]} {line[1:]}" for line in lines if not line.startswith(("---", "+++", "@@"))
        ]

    def write(self) -> None:
        """Replace the file at once. StorageError where that cannot be done."""
        draft = self.path.with_name(f".{self.path.name}.{os.urandom(4).hex()}")
        target = self.path.resolve()  # a link stays a link
        try:
            draft.write_text(self.after, encoding="utf-8")
            if target.exists():
                draft.chmod(target.stat().st_mode & 0o777)
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StorageError(
                f"{self.path} cannot be written: {error}", hint="write the settings by hand"
            ) from error


def settings_edit(path: Path, settings: Mapping[str, SettingValue]) -> SettingsEdit:
    """Return the edit that sets these settings, by dotted key.

    Raise UsageError if the file is written in a form that no line can be added to.
    """
    before, old = _read(path)
    lines = before.splitlines()
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        if _value_in(old, table, name) != _plain(value):
            _set(lines, table, name, value)
    after = "\n".join(lines) + "\n" if lines else ""
    after = before if lines == before.splitlines() else after
    _check(path, old, settings, after)
    return SettingsEdit(path=path, before=before, after=after)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """A file's text and what it means; of one that is not there, nothing."""
    try:
        text = read_regular_text(path) if path.exists() else ""
        return text, tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path}: {error}", hint="put it right first: the settings are added to it"
        ) from error


def _check(
    path: Path, old: Mapping[str, Any], settings: Mapping[str, SettingValue], after: str
) -> None:
    """Raise UsageError unless the new text means the old one and the settings.

    Some forms of TOML have no line for a key, such as an inline table.
    """
    wanted: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in old.items()
    }
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        inner = wanted.setdefault(table, {}) if table else wanted
        if isinstance(inner, dict):
            inner[name] = _plain(value)
    try:
        is_right = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        lines = "\n".join(f"{key} = {_written(value)}" for key, value in settings.items())
        hint = f"write them there by hand:\n{lines}"
        raise UsageError(
            f"{path} is written in a way that the settings cannot be added to", hint=hint
        )


def _set(lines: list[str], table: str, name: str, value: SettingValue) -> None:
    """Give one key its value: in its line, else as the last of its table, else in a new table at
    the end.
    """
    start, end = _extent(lines, table)
    place = _place(lines, start, end, name)
    if place is not None:
        lines[place] = [f"{name} = {_written(value)}"]
        return
    if start < 0:
        lines += [*([""] if lines else []), f"[{table}]", f"{name} = {_written(value)}"]
        return
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{name} = {_written(value)}")


def _place(lines: list[str], start: int, end: int, name: str) -> slice | None:
    """The lines of a key and its value among those of a table; None if there are none."""
    for number in range(start, end):
        if re.match(rf"""\s*["']?{re.escape(name)}["']?\s*=""", lines[number]):
            return slice(number, next(_value_ends(lines, number, end)) + 1)
    return None


def _extent(lines: list[str], table: str) -> tuple[int, int]:
    """The first line of a table's keys, and the line after its last; (-1, -1) if it has no header."""
    headers = [
        (number, match[1])
        for number, line in enumerate(lines)
        if (match := _HEADER.fullmatch(line))
    ]
    starts = [(0, "")] + [(number + 1, name) for number, name in headers]
    ends = [number for number, _ in headers] + [len(lines)]
    return next(
        ((start, end) for (start, name), end in zip(starts, ends, strict=True) if name == table),
        (-1, -1),
    )


def _value_ends(lines: list[str], first: int, end: int) -> Iterator[int]:
    """The last line of the value that begins on a line: a list may go over several. The first one
    itself at worst.
    """
    for last in range(first, end):
        try:
            tomllib.loads("\n".join(lines[first : last + 1]))
        except tomllib.TOMLDecodeError:
            continue
        yield last
    yield first


def _value_in(document: Mapping[str, Any], table: str, name: str) -> Any:
    inner = document.get(table, {}) if table else document
    return inner.get(name) if isinstance(inner, dict) else None


def _plain(value: SettingValue) -> str | list[str]:
    return list(value) if isinstance(value, tuple) else value


def _written(value: SettingValue) -> str:
    """As TOML: its basic strings are JSON's, but for DEL."""
    return json.dumps(_plain(value), ensure_ascii=False).replace("\x7f", "\\u007f")
