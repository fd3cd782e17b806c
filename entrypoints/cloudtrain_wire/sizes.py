"""Numbers of bytes as text. Standard library only."""

from __future__ import annotations


def format_size(size: float) -> str:
    """Return `0 B`, `34 kB`, `1.2 GB`: decimal units, two digits below ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            if unit == "B" or size >= 10:
                return f"{size:.0f} {unit}"

            return f"{size:.1f} {unit}"
        size /= 1000

    return f"{size:.1f} TB"
