"""Edits of a cloudtrain.toml that set the settings of a deployment and keep the rest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.providers.infrastructure import SettingValue
from cloudtrain_launcher.packages.bounded_files import read_regular_text


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsEdit:
    """Content of a file before and after an edit."""

    path: Path
    before: str
    after: str

    @property
    def is_empty(self) -> bool:
        """True if the file already has these settings."""
        return self.before == self.after

    def diff(self) -> list[str]:
        """Return the removed (`- `) and added (`+ `) lines, with the lines around them."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), lineterm="", n=1
        )
        return [
            f"{line[0]} {line[1:]}" for line in lines if not line.startswith(("---", "+++", "@@"))
        ]

    def write(self) -> None:
        """Replace the file as a whole. Raise StorageError if it cannot be written."""
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

    Raise UsageError if the file is not valid TOML, or has a value in the place of a table.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        before = read_regular_text(path) if path.exists() else ""
        document = tomlkit.parse(before)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        hint = "correct the file, then repeat the command"
        raise UsageError(f"{path}: {error}", hint=hint) from error

    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        if table and table not in document:
            document[table] = tomlkit.table()
        keys: Any = document[table] if table else document
        if not isinstance(keys, dict):
            hint = f"remove it, or make it a table: [{table}]"
            raise UsageError(f"{path}: {table} is not a table", hint=hint)
        plain = list(value) if isinstance(value, tuple) else value
        if keys.get(name) != plain:
            keys[name] = plain
    return SettingsEdit(path=path, before=before, after=tomlkit.dumps(document))
