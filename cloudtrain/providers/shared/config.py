"""Settings that both clouds fix in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudConfig(ProviderConfig):
    """Settings of both clouds; each cloud adds more."""

    prices: Mapping[str, float] = field(default_factory=dict)
    """Price by instance type, in US dollars per machine and hour; unknown prices are missing."""
    poll: float = 10.0
    """Seconds between two status requests."""
    placeholders: tuple[str, ...] = ()
    """Dotted names of missing settings that a rehearsal replaces by placeholders."""
    unpaid: tuple[str, ...] = ()
    """Messages about cost limits: errors of a real job, notes of a rehearsal."""
