"""Masking of secret values in logs, events and the failure file. Standard library only.

Each line of a value is masked. Values shorter than `MIN_SECRET_CHARS` and transformed values
(base64, reversed, split) are not recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MASK = "***"
MIN_SECRET_CHARS = 6
"""Minimum length: shorter values occur in too many harmless words."""


class SecretMasker:
    """Replacement of secret values by `***`. `add` values before any output that contains them."""

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def add(self, values: Iterable[str]) -> None:
        """Add values to mask: each of their lines, also as JSON writes it."""
        masked = set(self._values)
        for value in values:
            for line in map(str.strip, (value, *value.splitlines())):
                if len(line) >= MIN_SECRET_CHARS:
                    masked.add(line.encode("utf-8", "surrogateescape"))
                    masked.add(json.dumps(line)[1:-1].encode())
                    masked.add(
                        json.dumps(line, ensure_ascii=False)[1:-1].encode(
                            "utf-8", "surrogateescape"
                        )
                    )
        # A value that contains another comes first.
        self._values = sorted(masked, key=len, reverse=True)

    def mask(self, line: bytes) -> bytes:
        """Return the line with every secret value masked."""
        for value in self._values:
            if value in line:
                line = line.replace(value, MASK.encode())
        return line

    def mask_json(self, value: Any) -> Any:
        """Return a JSON value with every string in it masked, keys included."""
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
        """Return the length of the text's end that may begin a secret value; 0 if none."""
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
"""Masker of this process."""
