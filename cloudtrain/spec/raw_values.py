"""Parts of raw values, for rules that look at a spec in which other fields may be wrong: that is
reported elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def mapping_of(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping at a key; empty where there is none."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def quantity_of(value: Any, parse: Callable[[str], Any]) -> Any:
    """The amount that a text says; None where it says none."""
    try:
        return parse(value) if isinstance(value, str) else None
    except ValueError:
        return None
