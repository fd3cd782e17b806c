"""Requests without run ids, times and tags, so that two of the same job can be compared. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from cloudtrain.providers.shared.tags import TAG_PREFIX

_PLANNED = f"{TAG_PREFIX}planned"


def without_varying(document: Any, run_id: str) -> Any:
    """Return plain JSON without run id, digest of the job document and time of planning.

    `run_id`: empty if unknown.
    """
    text = json.dumps(document)
    text = text.replace(run_id, "{run}") if run_id else text
    return without_tags(
        json.loads(re.sub(r"/job/[0-9a-f]{16}/", "/job/…/", text)), lambda name: name == _PLANNED
    )


def without_tags(value: Any, is_left_out: Callable[[str], bool]) -> Any:
    """Return plain JSON without these tags, in mappings and in AWS lists of Key and Value."""
    if isinstance(value, dict):
        return {
            key: without_tags(item, is_left_out)
            for key, item in value.items()
            if not is_left_out(key)
        }
    if isinstance(value, list):
        return [without_tags(item, is_left_out) for item in value if not is_left_out(_key_of(item))]
    return value


def _key_of(item: Any) -> str:
    return str(item.get("Key", "")) if isinstance(item, dict) else ""
