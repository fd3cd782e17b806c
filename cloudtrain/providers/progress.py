"""Callbacks that tell the user of progress and remarks."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the amount done and the total, in the same unit (bytes)."""

Note = Callable[[str], None]
"""Called with a remark for the user, such as a skipped file."""
