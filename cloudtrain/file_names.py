"""Names of files between a job, which is on Linux, and this machine, which may be on Windows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import PurePath

_UNSTORABLE = r'(?i)[<>:"\\|?*\x00-\x1f]|[. ](/|$)|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)'
"""Source: Microsoft, Naming Files, Paths, and Namespaces."""


def relative_name(path: str | PurePath, folder: str | PurePath) -> str:
    """Return a path from a folder as jobs write it; the whole path on another drive of Windows."""
    try:
        name = os.path.relpath(path, folder)
    except ValueError:
        name = str(path)

    return name.replace(os.sep, "/")


def is_storable(name: str) -> bool:
    """Return whether this system can store a job's file under its name, and inside its folder."""
    return sys.platform != "win32" or not re.search(_UNSTORABLE, name)
