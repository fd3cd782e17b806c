"""Decisions of a provider for one plan, as a run folder keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderConfig:
    """Decisions of a provider for one plan. Each provider declares its own fields."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read the result of `to_json`. Ignore unknown keys, use defaults for missing ones."""
        names = {item.name for item in fields(cls)}
        return cls(**{name: _frozen(value) for name, value in document.items() if name in names})


Config = TypeVar("Config", bound=ProviderConfig)


def _frozen(value: Any) -> Any:
    """Return lists as tuples."""
    if not isinstance(value, list):
        return value

    return tuple(map(_frozen, value))
