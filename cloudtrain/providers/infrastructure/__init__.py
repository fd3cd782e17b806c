"""Templates of what an account needs, and the outputs of a deployed template."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
        settings = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.settings.items()
        }
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
