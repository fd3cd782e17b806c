"""Output of the launcher itself: events, log lines and the failure file. Standard library only.

Secret values are masked in all of them, and in the ranks' output. Each line of a value is masked.
Values shorter than `MIN_SECRET_CHARS` and transformed values (base64, reversed, split) are not
recognised.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

from cloudtrain_job import event_line
from cloudtrain_launcher import failure
from cloudtrain_wire import causes
from cloudtrain_wire.events import Cause, Error, Event

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

        if not isinstance(value, list):
            return value

        return [self.mask_json(item) for item in value]

    def partial_match_length(self, text: bytes) -> int:
        """Return the length of the text's end that may begin a secret value; 0 if none."""
        longest = 0
        for value in self._values:
            for length in range(longest + 1, min(len(value), len(text) + 1)):
                if text.endswith(value[:length]):
                    longest = length

        return longest


masker = SecretMasker()
"""Masker of this process."""


def write_text(line: bytes) -> None:
    """Write one line of text, with secret values masked."""
    write_line(masker.mask(line))


def write_line(line: bytes) -> None:
    """Write a whole line to standard output; without a reader drop it and continue."""
    data = memoryview(line + b"\n")

    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        pass


def emit(event: Event) -> None:
    """Write an event of this node, with rank -1 by default."""
    write_line(event_line(event.type, **{"rank": -1, **_masked_fields(event)}).rstrip(b"\n"))


def log(node: int, text: str) -> None:
    """Write `[node 3] text` as one line."""
    write_text(f"[node {node}] {text}".encode("utf-8", "replace"))


def node_error(error: Exception) -> Error:
    """Turn the launcher's exception into an error without a rank (-1), now."""
    hint = getattr(error, "hint", "")
    return Error(
        rank=-1, time=time.time(), exception=type(error).__name__, message=str(error), hint=hint
    )


def mask_error(error: Error) -> Error:
    """Return the error with secret values masked in its texts."""
    return error.replace(**_masked_fields(error))


def brief_cause(error: Error | None) -> Cause | None:
    """Return the cause for `node_ended`: without traceback and stack, which its own event has."""
    return error and Cause(**error.without("traceback", "stack", "seq").fields())


def report_failure(error: Error, path: str) -> None:
    """Write the cause into the platform's failure file, if any, and as the log's last line."""
    if path:
        try:
            failure.write_failure_file(path, error)
        except OSError as write_error:
            log(error.node, f"cannot write {path}: {write_error.strerror}")

    log(error.node, f"failed: {causes.one_line(error)}")


def _masked_fields(event: Event) -> dict[str, Any]:
    return {name: masker.mask_json(value) for name, value in event.fields().items()}
