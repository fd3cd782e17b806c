"""Reads account settings from the spec, else from our settings, else from the configuration of the
cloud's own CLI.

The CLIs' files are read as plain text: no SDK, no process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.settings import Settings
from cloudtrain_launcher.packages.bounded_files import read_regular_text

CliDefault = tuple[str, str]
"""A value and its origin: `("us-east-1", "~/.aws/config:2")`."""

_SECTION = re.compile(r"\[\s*(.*?)\s*\]")
_VALUE = re.compile(r"([\w.-]+)\s*[=:]\s*(.*?)\s*$")


@dataclass(frozen=True, slots=True)
class RequiredSetting:
    """A setting that every job needs."""

    example: str
    meaning: str
    placeholder: str
    """The value of a rehearsal where the setting is missing; it is never sent."""


def configured_repository(settings: Settings, provider: str) -> str:
    """The image repository in the settings, for commands that read no spec. UsageError if it is not
    set.
    """
    found = settings.get(f"{provider}.repository")
    if not found:
        hint = (
            f"--to REPOSITORY, or [{provider}] repository in cloudtrain.toml (no job.yaml is read"
            " here)"
        )
        raise UsageError(
            f"{provider}.repository is not set: no repository is configured", hint=hint
        )
    return str(found)


class SettingsReader:
    """Reads the settings of an account one by one, and collects their origins and what is missing."""

    def __init__(
        self,
        provider: str,
        section: Any,
        settings: Settings,
        cli_defaults: Callable[[], Mapping[str, CliDefault]],
        *,
        rehearsal: bool,
    ) -> None:
        """`section`: the provider's section of the spec. `cli_defaults`: reads the defaults of the
        cloud's own CLI.
        """
        self.provider = provider
        self.section = section
        self.settings = settings
        self.rehearsal = rehearsal
        self.origins: dict[str, str] = {}
        """Where a setting comes from if it is not in the spec, by dotted name."""
        self.borrowed: dict[str, str] = {}
        """Values from the cloud's own CLI, by dotted name; the plan shows them."""
        self.placeholders: list[str] = []
        """Dotted names of settings that a rehearsal replaces by placeholders."""
        self.problems: list[Issue] = []
        """Required settings that are missing."""
        self._cli_defaults = cli_defaults
        self._cli_values: Mapping[str, CliDefault] | None = None

    def required(self, name: str, needed: RequiredSetting) -> str:
        """The setting; if it is missing, a placeholder in a rehearsal, else an issue and an empty
        text.
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
        """The setting, or None."""
        value = self._from_spec_or_settings(name)
        if value:
            return str(value)
        if self._cli_values is None:
            self._cli_values = self._cli_defaults()
        if name not in self._cli_values:
            return None
        found, self.origins[f"{self.provider}.{name}"] = self._cli_values[name]
        self.borrowed[f"{self.provider}.{name}"] = found
        return found

    def list_of(self, name: str) -> tuple[str, ...]:
        """A setting that is a list; empty if it is missing."""
        return tuple(self._from_spec_or_settings(name) or ())

    def _from_spec_or_settings(self, name: str) -> Any:
        value = getattr(self.section, name)
        if value in (None, (), "") and self.settings.get(f"{self.provider}.{name}"):
            value = self.settings[f"{self.provider}.{name}"]
            self.origins[f"{self.provider}.{name}"] = self.settings.origins[
                f"{self.provider}.{name}"
            ]
        return value


def ini_value(path: Path, section: str, key: str) -> CliDefault | None:
    """The value of a key in a section of an INI file; None if it is missing or the file cannot be
    read.
    """
    try:
        lines = read_regular_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    current = ""
    for number, line in enumerate(lines, 1):
        if header := _SECTION.match(line):
            current = _unquoted(header[1])
        elif current == section and (found := _VALUE.match(line)) and found[1] == key:
            value = re.split(r"\s[#;]", found[2])[0].strip()
            return (value, f"{display_path(path)}:{number}") if value else None
    return None


def ini_sections(path: Path) -> list[str]:
    """The names of the sections of an INI file; none if the file cannot be read."""
    try:
        lines = read_regular_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [_unquoted(header[1]) for line in lines if (header := _SECTION.match(line))]


def _unquoted(section: str) -> str:
    return re.sub(r"""["']""", "", section)  # [profile "my own"] is `profile my own`


def display_path(path: Path) -> str:
    """The path with the home folder written as `~`."""
    home = str(Path.home())
    return "~" + str(path)[len(home) :] if str(path).startswith(f"{home}/") else str(path)


def environment_value(environ: Mapping[str, str], name: str) -> CliDefault | None:
    """The value of an environment variable; None if it is empty or not set."""
    return (environ[name], f"environment {name}") if environ.get(name) else None
