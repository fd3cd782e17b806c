"""Requests without what differs between any two of the same job, so that what is left can be
compared. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from cloudtrain.providers.shared.tags import TAG_PREFIX

_PLANNED = f"{TAG_PREFIX}planned"


def without_varying(document: Any, run_id: str) -> Any:
    """Plain JSON without the run's id, the digest of its job document in addresses, and the time of
    planning.

    `run_id`: empty where it is not known.
    """
    text = json.dumps(document)
    text = text.replace(run_id, "{run}") if run_id else text
    return without_tags(
        json.loads(re.sub(r"/job/[0-9a-f]{16}/", "/job/…/", text)), lambda name: name == _PLANNED
    )


def without_tags(value: Any, is_left_out: Callable[[str], bool]) -> Any:
    """Plain JSON without the tags of such names, as a mapping has them and as AWS writes them: a
    key and a value.
    """
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
