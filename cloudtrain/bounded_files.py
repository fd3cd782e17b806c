"""Readers of regular files with a size limit: job folders, settings and run folders.

The launcher's own functions, since it reads the same folder.
"""

from __future__ import annotations

from cloudtrain_launcher.packages.bounded_files import (
    MAX_BYTES,
    FileTooLarge,
    open_regular_file,
    read_regular_file,
    read_regular_text,
)

__all__ = [
    "MAX_BYTES",
    "FileTooLarge",
    "open_regular_file",
    "read_regular_file",
    "read_regular_text",
]
