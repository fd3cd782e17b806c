"""The instances that a request asks for: their types and counts, in order of preference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def instance_choices(resources: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return types and counts in the order of preference; a single one without preferences."""
    items = resources.get("InstancePreferences") or [resources]
    return [(item.get("InstanceType", ""), item.get("InstanceCount", 0)) for item in items]


def has_accelerators(kind: str) -> bool:
    """Return whether a type has GPUs or Trainium chips."""
    return re.match(r"ml\.(p|g|trn)\d", kind) is not None
