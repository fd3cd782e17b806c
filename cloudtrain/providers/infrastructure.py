"""Templates of what an account needs; outputs of a deployed template, written to the settings."""

from __future__ import annotations

import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cloudtrain.errors import StorageError, UsageError
from cloudtrain_wire.bounded_files import read_regular_text

DEFAULT_NAME = "cloudtrain"
"""Default name of a deployment."""

SettingValue = str | tuple[str, ...]
"""Value of a setting in cloudtrain.toml: a text, or a list of texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Outputs of a deployed template."""

    settings: Mapping[str, SettingValue]
    """Settings for cloudtrain.toml, by dotted key: `aws.bucket`."""
    outputs: Mapping[str, str]
    """Other outputs, by their meaning: the policy to attach, the role for GitHub."""

    def to_json(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        settings = {key: _plain(value) for key, value in self.settings.items()}
        return {"settings": settings, "outputs": dict(self.outputs)}


class Infrastructure(ABC):
    """The template of one provider, and one deployment of it.

    A provider that has a template returns this from `Provider.infrastructure`.
    """

    formats: ClassVar[tuple[str, ...]]
    """Formats of the template; the first one is the default."""

    @abstractmethod
    def template(self, format_: str) -> str:
        """Return the template in one of `formats`. Needs neither account nor network."""

    @abstractmethod
    def deployment(self) -> Deployment:
        """Read the outputs of the deployment.

        Raise UsageError if a setting is missing, CloudError if the deployment does not exist or
        has not succeeded.
        """


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
            self.before.splitlines(),
            self.after.splitlines(),
            lineterm="",
            n=1,
        )
        changed = []
        for line in lines:
            if not line.startswith(("---", "+++", "@@")):
                changed.append(f"{line[0]} {line[1:]}")

        return changed

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
                f"{self.path} cannot be written: {error}",
                hint="write the settings by hand",
            ) from error


def settings_edit(path: Path, settings: Mapping[str, SettingValue]) -> SettingsEdit:
    """Return the edit that sets these settings, by dotted key.

    Raise UsageError if the file is not valid TOML, or has a value in the place of a table.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before = ""
    try:
        if path.exists():
            before = read_regular_text(path)
        document = tomlkit.parse(before)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        hint = "correct the file, then repeat the command"
        raise UsageError(f"{path}: {error}", hint=hint) from error

    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        if table and table not in document:
            document[table] = tomlkit.table()
        keys: Any = document
        if table:
            keys = document[table]
        if not isinstance(keys, dict):
            hint = f"remove it, or make it a table: [{table}]"
            raise UsageError(f"{path}: {table} is not a table", hint=hint)
        if keys.get(name) != _plain(value):
            keys[name] = _plain(value)

    return SettingsEdit(path=path, before=before, after=tomlkit.dumps(document))


def _plain(value: SettingValue) -> str | list[str]:
    if isinstance(value, tuple):
        return list(value)

    return value
