"""How a run has ended, where a full disk would not take the event: written over room that was taken at the start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOM = 4096
"""Bytes: one block of the usual file systems, which write over it in place."""

_LONGEST = 500
"""Characters that are kept of any one text."""


def reserve(file: Path) -> None:
    """Take the room, if there is any."""
    try:
        with file.open("wb") as taken:
            taken.write(b" " * ROOM)
            taken.flush()
            os.fsync(taken.fileno())
    except OSError:
        file.unlink(missing_ok=True)


def write(file: Path, event: Mapping[str, Any]) -> None:
    """Write down the event that ends the run, shortened to fit; nothing where no room was taken."""
    short = _short(event)
    text = json.dumps(short, ensure_ascii=False).encode("utf-8", "replace")
    if len(text) > ROOM:
        text = json.dumps({key: short[key] for key in ("type", "time", "state", "reason") if key in short}).encode()
    try:
        with file.open("r+b") as taken:
            taken.write(text[:ROOM].ljust(ROOM))
            taken.flush()
            os.fsync(taken.fileno())
    except OSError:
        return


def read(file: Path) -> dict[str, Any] | None:
    """The event, if there is one."""
    try:
        event = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return event if isinstance(event, dict) and event.get("type") == "ended" and "state" in event else None


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST]
    return {key: _short(item) for key, item in value.items()} if isinstance(value, Mapping) else value
