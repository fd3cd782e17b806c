"""Settings of a job's folder that redirect the job, and whether the user has confirmed them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cloudtrain.declaration import declaration_of
from cloudtrain.errors import StorageError
from cloudtrain.runs.files import append_lines, make_private_folder
from cloudtrain.settings import DEFAULTS, Settings
from cloudtrain_wire.bounded_files import read_regular_text

FILE = "confirmed.jsonl"
"""File in the data folder with a line per confirmation; the last one of a folder counts."""


def redirections(settings: Settings, provider: str) -> dict[str, str]:
    """Return what the folder says of the account, by key; empty for a job on this machine."""
    if not declaration_of(provider).is_remote:
        return {}

    values = {}
    for key in sorted(settings.redirects):
        if key in ("provider", DEFAULTS) or key.startswith(f"{provider}."):
            value = settings[key]
            values[key] = ", ".join(value) if isinstance(value, tuple) else str(value)

    return values


def is_confirmed(settings: Settings, redirected: Mapping[str, str]) -> bool:
    """Return whether the user has confirmed these values for this folder."""
    try:
        lines = read_regular_text(Path(settings["data_dir"]) / FILE).splitlines()
    except (OSError, UnicodeDecodeError):
        return False

    for line in reversed(lines):
        try:
            folder, values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if folder == str(settings.folder.resolve()):
            return bool(values.items() >= redirected.items())

    return False


def confirm(settings: Settings, redirected: Mapping[str, str]) -> None:
    """Remember that the user has confirmed these values; if the disk refuses, the question returns."""
    data_dir = Path(settings["data_dir"])
    line = json.dumps([str(settings.folder.resolve()), dict(redirected)])
    with suppress(OSError, StorageError):
        make_private_folder(data_dir)
        append_lines(data_dir / FILE, f"{line}\n", durable=False)
