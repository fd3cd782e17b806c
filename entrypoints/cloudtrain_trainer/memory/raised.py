"""What an exception of a user's code says in one line, with the line of the program that led to it."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_TRAINER = str(Path(__file__).resolve().parents[1])
_LIBRARIES = ("site-packages", "dist-packages", f"lib{os.sep}python", "<")


def one_line(error: BaseException) -> str:
    """`ValueError: shard 3 is gone (train.py:41)`; without the place where only libraries' frames
    are known.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = (
        lines[-1] if lines and lines[0].startswith("Caught ") else "".join(lines[:1])
    )  # a DataLoader's worker
    message = f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{message} ({os.path.relpath(own[-1].filename)}:{own[-1].lineno})" if own else message


def _is_own(file: str) -> bool:
    return not file.startswith(_TRAINER) and not any(part in file for part in _LIBRARIES)
