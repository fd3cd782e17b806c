"""Output of the launcher itself: events, log lines and the failure file. Standard library only.

Secret values are masked in all of them.
"""

from __future__ import annotations

import time
from typing import Any

from cloudtrain_job import event_line
from cloudtrain_launcher import failure
from cloudtrain_launcher.events import Cause, Error, Event
from cloudtrain_launcher.masking import masker
from cloudtrain_launcher.streams import write_line, write_text


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
    log(error.node, f"failed: {failure.one_line(error)}")


def _masked_fields(event: Event) -> dict[str, Any]:
    return {name: masker.mask_json(value) for name, value in event.fields().items()}
