"""Keeps secret values out of what a node tells: its log, its events, the failure file. Standard library only.

What is masked are the values themselves, line by line where a value has several. A value that is shorter than
`SHORTEST`, or that a program has changed (base64, reversed, cut in two by itself), is not recognised.
"""

from __future__ import annotations

import json
from typing import Any, Iterable

MASK = "***"
MIN_SECRET_CHARS = 6
"""Characters; shorter values stand in too many harmless words."""


class SecretMasker:
    """The values to hide. `add` them before anything is told that may hold them."""

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def add(self, values: Iterable[str]) -> None:
        """Hide these from now on, each line of theirs and each as JSON writes it."""
        found = set(self._values)
        for value in values:
            for line in (value, *value.splitlines()):
                if len(line.strip()) >= MIN_SECRET_CHARS:
                    found.add(line.strip().encode("utf-8", "surrogateescape"))
                    found.add(json.dumps(line.strip())[1:-1].encode())
                    found.add(json.dumps(line.strip(), ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"))
        self._values = sorted(found, key=len, reverse=True)  # a value that holds another one goes first

    def mask(self, line: bytes) -> bytes:
        """The line with each of the values masked."""
        for value in self._values:
            if value in line:
                line = line.replace(value, MASK.encode())
        return line

    def mask_json(self, value: Any) -> Any:
        """The same for every text in a JSON value."""
        if not self._values:
            return value
        if isinstance(value, str):
            return self.mask(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
        if isinstance(value, dict):
            return {self.mask_json(name): self.mask_json(item) for name, item in value.items()}
        return [self.mask_json(item) for item in value] if isinstance(value, list) else value

    def partial_match_length(self, text: bytes) -> int:
        """How many bytes at the text's end may be the beginning of a value whose rest is still to come."""
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
"""Those of this node."""
