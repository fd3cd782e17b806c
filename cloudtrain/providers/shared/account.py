"""Read account settings: the spec first, then our settings, then the cloud's own CLI.

The CLIs' files are read as plain text: no SDK, no process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import Issue, UsageError
from cloudtrain.settings import Settings
from cloudtrain_wire.bounded_files import read_regular_text

CliDefault = tuple[str, str]
"""Value and origin: `("us-east-1", "~/.aws/config:2")`."""

_SECTION = r"\[\s*(.*?)\s*\]"
_VALUE = r"([\w.-]+)\s*[=:]\s*(.*?)\s*$"


class RequiredSetting(NamedTuple):
    """A setting that every job needs."""

    example: str
    meaning: str
    placeholder: str
    """Value in a rehearsal if the setting is missing; never sent."""


def configured_repository(settings: Settings, provider: str) -> str:
    """Return the image repository of the settings, for commands that read no spec.

    Raise UsageError if it is not set.
    """
    repository = settings.get(f"{provider}.repository")
    if not repository:
        hint = (
            f"--to REPOSITORY, or [{provider}] repository in cloudtrain.toml (no job.yaml is read"
            " here)"
        )
        raise UsageError(
            f"{provider}.repository is not set: no repository is configured",
            hint=hint,
        )

    return str(repository)


class SettingsReader:
    """Read the settings of an account one by one; collect origins and missing settings."""

    def __init__(
        self,
        provider: str,
        section: Any,
        settings: Settings,
        cli_defaults: Callable[[], Mapping[str, CliDefault]],
        *,
        rehearsal: bool,
    ) -> None:
        """Create a reader. `section`: the provider's section of the spec.

        `cli_defaults`: reads the defaults of the cloud's own CLI.
        """
        self.provider = provider
        self.section = section
        self.settings = settings
        self.rehearsal = rehearsal
        self.origins: dict[str, str] = {}
        """Origin of each setting that is not in the spec, by dotted name."""
        self.borrowed: dict[str, str] = {}
        """Values from the cloud's own CLI, by dotted name; the plan shows them."""
        self.placeholders: list[str] = []
        """Dotted names of settings that a rehearsal replaces by placeholders."""
        self.problems: list[Issue] = []
        """Issues about required settings that are missing."""
        self._cli_defaults = cli_defaults
        self._cli_values: Mapping[str, CliDefault] | None = None

    def required(self, name: str, needed: RequiredSetting) -> str:
        """Return the setting. If it is missing, return a placeholder or report an issue.

        Placeholders are for rehearsals; otherwise the result is empty.
        """
        value = self.optional(name)
        if value:
            return value
        if self.rehearsal:
            self.placeholders.append(f"{self.provider}.{name}")
            return needed.placeholder

        hint = (
            f"{needed.meaning}: {self.provider}: {{{name}: {needed.example}}} in job.yaml,"
            f" [{self.provider}] {name} in cloudtrain.toml, or"
            f" CLOUDTRAIN_{self.provider.upper()}_{name.upper()}"
        )
        self.problems.append(Issue((self.provider, name), "is not set", hint))
        return ""

    def optional(self, name: str) -> str | None:
        """Return the setting, or None."""
        value = self._from_spec_or_settings(name)
        if value:
            return str(value)
        if self._cli_values is None:
            self._cli_values = self._cli_defaults()
        if name not in self._cli_values:
            return None

        key = f"{self.provider}.{name}"
        cli_value, self.origins[key] = self._cli_values[name]
        self.borrowed[key] = cli_value

        return cli_value

    def list_of(self, name: str) -> tuple[str, ...]:
        """Return a setting that is a list; empty if it is missing."""
        return tuple(self._from_spec_or_settings(name) or ())

    def _from_spec_or_settings(self, name: str) -> Any:
        value = getattr(self.section, name)
        key = f"{self.provider}.{name}"
        if value in (None, (), "") and self.settings.get(key):
            value = self.settings[key]
            self.origins[key] = self.settings.origins[key]
        return value


def ini_value(path: Path, section: str, key: str) -> CliDefault | None:
    """Return the value of a key in a section of an INI file; None if it cannot be read."""
    try:
        lines = read_regular_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return None

    current = ""
    for number, line in enumerate(lines, 1):
        if header := re.match(_SECTION, line):
            current = _unquoted(header[1])
        elif current == section and (entry := re.match(_VALUE, line)) and entry[1] == key:
            value = re.split(r"\s[#;]", entry[2])[0].strip()
            if not value:
                return None

            return (value, f"{display_path(path)}:{number}")

    return None


def _unquoted(section: str) -> str:
    return re.sub(r"""["']""", "", section)  # [profile "my own"] is `profile my own`


def display_path(path: Path) -> str:
    """Return the path with the home folder written as `~`."""
    home = str(Path.home())
    if str(path).startswith(f"{home}/"):
        return "~" + str(path)[len(home) :]

    return str(path)


def environment_value(name: str) -> CliDefault | None:
    """Return the value of an environment variable; None if it is empty or not set."""
    value = os.environ.get(name)
    if not value:
        return None

    return value, f"environment {name}"
