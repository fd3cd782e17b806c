"""Settings that both clouds fix in a plan: prices, the polling interval, and what a rehearsal goes
without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudConfig(ProviderConfig):
    """The settings that both clouds have; each adds its own."""

    prices: Mapping[str, float] = field(default_factory=dict)
    """US dollars per hour of one machine, by instance type; types without a known price are
    missing.
    """
    poll: float = 10.0
    """Seconds between two status requests."""
    placeholders: tuple[str, ...] = ()
    """Dotted names of settings that are not set, and that a rehearsal replaces by placeholders."""
    unpaid: tuple[str, ...] = ()
    """Messages about cost limits: they stop a real job, and are only shown for a rehearsal."""
