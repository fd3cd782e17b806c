"""Masks secret values in a node's log, its events and the failure file. Standard library only.

The values themselves are masked, line by line if a value has several lines. A value that is shorter
than `MIN_SECRET_CHARS`, or that a program has transformed (base64, reversed, split), is not
recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MASK = "***"
MIN_SECRET_CHARS = 6
"""Shorter values occur in too many harmless words."""


class SecretMasker:
    """Replaces secret values by `***`. `add` them before anything is written that may contain them."""

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def add(self, values: Iterable[str]) -> None:
        """Mask these values from now on, each of their lines and each as JSON writes it."""
        known = set(self._values)
        for value in values:
            for line in map(str.strip, (value, *value.splitlines())):
                if len(line) >= MIN_SECRET_CHARS:
                    known.add(line.encode("utf-8", "surrogateescape"))
                    known.add(json.dumps(line)[1:-1].encode())
                    known.add(
                        json.dumps(line, ensure_ascii=False)[1:-1].encode(
                            "utf-8", "surrogateescape"
                        )
                    )
        self._values = sorted(
            known, key=len, reverse=True
        )  # a value that contains another one comes first

    def mask(self, line: bytes) -> bytes:
        """The line with every secret value masked."""
        for value in self._values:
            if value in line:
                line = line.replace(value, MASK.encode())
        return line

    def mask_json(self, value: Any) -> Any:
        """A JSON value with every string in it masked, keys included."""
        if not self._values:
            return value
        if isinstance(value, str):
            return self.mask(value.encode("utf-8", "surrogateescape")).decode(
                "utf-8", "surrogateescape"
            )
        if isinstance(value, dict):
            return {self.mask_json(name): self.mask_json(item) for name, item in value.items()}
        return [self.mask_json(item) for item in value] if isinstance(value, list) else value

    def partial_match_length(self, text: bytes) -> int:
        """How many bytes at the end of the text may be the beginning of a secret value; 0 if none."""
        return max(
            (
                length
                for value in self._values
                for length in range(1, min(len(value), len(text) + 1))
                if text.endswith(value[:length])
            ),
            default=0,
        )


masker = SecretMasker()
"""The masker of this process."""
