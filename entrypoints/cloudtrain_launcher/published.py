"""Files that the client leaves for a job while it runs, and that the job reads by itself. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Optional


def read_published(place: str, name: str) -> Optional[str]:
    """The text of a file at `NodeContext.published`; None if the client has published none of that name so far.

    RuntimeError or OSError if that cannot be found out.
    """
    if not place:
        raise RuntimeError("this platform has no place at which a job reads what its client publishes")
    try:
        return Path(place, name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise RuntimeError(f"{name} is not text: {error}") from None
