"""Read files of a job's folder, of settings and of run folders: regular ones, up to a limit.

Shared with the launcher, which reads the same folder: see `cloudtrain.bundle.launcher_module`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.bundle import launcher_module

if TYPE_CHECKING:
    from cloudtrain_launcher.packages.bounded_files import (
        MAX_BYTES,
        FileTooLarge,
        open_regular_file,
        read_regular_file,
        read_regular_text,
    )
else:
    _shared = launcher_module("packages.bounded_files")
    MAX_BYTES = _shared.MAX_BYTES
    FileTooLarge = _shared.FileTooLarge
    open_regular_file = _shared.open_regular_file
    read_regular_file = _shared.read_regular_file
    read_regular_text = _shared.read_regular_text

__all__ = [
    "MAX_BYTES",
    "FileTooLarge",
    "open_regular_file",
    "read_regular_file",
    "read_regular_text",
]
