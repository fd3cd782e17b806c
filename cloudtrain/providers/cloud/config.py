"""What both clouds decide for a plan: prices, how often a job is looked at, and where a rehearsal is not in earnest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudtrain.planning.target import ProviderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudConfig(ProviderConfig):
    """The part of a cloud's settings that is alike in all clouds."""

    prices: Mapping[str, float] = field(default_factory=dict)
    """US dollars per hour of one machine, by instance type; those that are known."""
    poll: float = 10.0
    """Seconds between two looks at a job."""
    placeholders: tuple[str, ...] = ()
    """Settings, dotted, that nobody has given and that a rehearsal does without."""
    unpaid: tuple[str, ...] = ()
    """What only money forbids, so that it is no reason to refuse a rehearsal: it is shown."""
