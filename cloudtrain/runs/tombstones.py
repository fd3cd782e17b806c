"""Tombstones of removed runs: a line of `removed.jsonl` for each, with what it has cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.runs.files import append_lines, strict_json
from cloudtrain_wire.bounded_files import read_regular_file

FILE = "removed.jsonl"

MAX_BYTES = 1 << 28
"""Limit of the file: lines of about half a million runs."""


def bury(data_dir: Path, line: Mapping[str, Any]) -> None:
    """Keep the line of a run, flushed to the disk. Raise StorageError if the disk refuses."""
    text = strict_json(line, separators=(",", ":"))
    append_lines(data_dir / FILE, f"{text}\n", durable=True)


def tombstones(data_dir: Path) -> list[dict[str, Any]]:
    """Return the line of each removed run; of a run that has returned, too."""
    try:
        content = read_regular_file(data_dir / FILE, MAX_BYTES)
    except OSError:
        return []

    lines = {}
    for text in content.splitlines():
        try:
            line = json.loads(text)
            lines[line["run"], line["created"]] = line
        except (ValueError, TypeError, KeyError, RecursionError):  # of a full disk
            continue

    return list(lines.values())
