"""What a job needs of a cloud's account: from the spec, or the settings, or else the cloud's own tools. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.providers.cloud.cli_defaults import Found
from cloudtrain.settings import Settings


@dataclass(frozen=True, slots=True)
class Needed:
    """A setting without which no job can be made."""

    example: str
    meaning: str
    placeholder: str
    """What a rehearsal says where nobody has said anything: nothing of it is ever asked for."""


def repository_in(settings: Settings, provider: str) -> str:
    """The repository of the settings, where no spec is at hand. UsageError when nobody has said one."""
    found = settings.get(f"{provider}.repository")
    if not found:
        hint = f"--to REPOSITORY, or [{provider}] repository in cloudtrain.toml (no job.yaml is read here)"
        raise UsageError(f"{provider}.repository is not set: no repository is configured", hint=hint)
    return str(found)


class Account:
    """Settings of an account, read one by one; remembers where each comes from, and what is missing."""

    def __init__(
        self,
        provider: str,
        section: Any,
        settings: Settings,
        cli_defaults: Callable[[], Mapping[str, Found]],
        *,
        rehearsal: bool,
    ) -> None:
        """`section`: the provider's in the spec. `cli_defaults`: what the cloud's own tools are set to."""
        self.provider, self.section, self.settings, self.rehearsal = provider, section, settings, rehearsal
        self.origins: dict[str, str] = {}
        """Of what no spec line says, by dotted path."""
        self.borrowed: dict[str, str] = {}
        """What was taken from the cloud's own tools, by dotted path, so that a plan can show it."""
        self.placeholders: list[str] = []
        """What a rehearsal goes without, dotted."""
        self.problems: list[Issue] = []
        """What is missing."""
        self._cli_defaults = cli_defaults
        self._known: Mapping[str, Found] | None = None

    def required(self, name: str, needed: Needed) -> str:
        """A setting that is reported where it is missing; a rehearsal may go without."""
        value = self.optional(name)
        if value:
            return value
        if self.rehearsal:
            self.placeholders.append(f"{self.provider}.{name}")
            return needed.placeholder
        hint = (
            f"{needed.meaning}: {self.provider}: {{{name}: {needed.example}}} in job.yaml, "
            f"[{self.provider}] {name} in cloudtrain.toml, or CLOUDTRAIN_{self.provider.upper()}_{name.upper()}"
        )
        self.problems.append(Issue((self.provider, name), "is not set", hint))
        return ""

    def optional(self, name: str) -> str | None:
        """A setting that may be missing."""
        value = self._said(name)
        if value:
            return str(value)
        if self._known is None:
            self._known = self._cli_defaults()
        if name not in self._known:
            return None
        found, self.origins[f"{self.provider}.{name}"] = self._known[name]
        self.borrowed[f"{self.provider}.{name}"] = found
        return found

    def several(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where nobody has said any."""
        return tuple(self._said(name) or ())

    def _said(self, name: str) -> Any:
        value = getattr(self.section, name)
        if value in (None, (), "") and self.settings.get(f"{self.provider}.{name}"):
            value = self.settings[f"{self.provider}.{name}"]
            self.origins[f"{self.provider}.{name}"] = self.settings.origins[f"{self.provider}.{name}"]
        return value
