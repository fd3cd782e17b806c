"""Store how a run ended despite a full disk, in a file with space reserved at the start."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cloudtrain_launcher.events import Ended, parse

RESERVED_BYTES = 4096
"""One block of the usual file systems, which overwrite it in place."""

_MAX_CHARACTERS = 500
"""Maximum length of each text in the event."""


def reserve(file: Path) -> None:
    """Reserve the space, if the disk has any."""
    try:
        with file.open("wb") as reserved:
            reserved.write(b" " * RESERVED_BYTES)
            reserved.flush()
            os.fsync(reserved.fileno())
    except OSError:
        file.unlink(missing_ok=True)


def write(file: Path, event: Ended) -> None:
    """Write the last event, shortened to fit; do nothing if no space was reserved."""
    short = _shortened(event.to_json())
    text = json.dumps(short, ensure_ascii=False).encode("utf-8", "replace")
    if len(text) > RESERVED_BYTES:
        text = json.dumps(
            {key: short[key] for key in ("type", "time", "state", "reason") if key in short}
        ).encode()
    try:
        with file.open("r+b") as reserved:
            reserved.write(text[:RESERVED_BYTES].ljust(RESERVED_BYTES))
            reserved.flush()
            os.fsync(reserved.fileno())
    except OSError:
        return


def read(file: Path) -> Ended | None:
    """Return the stored event, or None."""
    try:
        event = parse(file.read_bytes())
    except OSError:
        return None
    return event if isinstance(event, Ended) else None


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS]
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value
