"""Programs that look at files which are not Python; the `dev` extra brings them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> str:
    """Return the path of that program: beside this Python, or on the PATH."""
    path = shutil.which(
        name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    )
    if path is None:
        raise RuntimeError(f"{name} is not installed: make test installs it")
    return path
