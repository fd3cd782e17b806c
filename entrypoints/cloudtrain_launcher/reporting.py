"""Output of the launcher itself: events, log lines and the failure file. Standard library only.

Secret values are masked in all of them, and in the ranks' output.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cloudtrain_job import event_line
from cloudtrain_launcher import failure
from cloudtrain_launcher.contract import Job
from cloudtrain_wire import causes
from cloudtrain_wire.events import Cause, Error, Event
from cloudtrain_wire.secret_values import masker, secrets_in

_output_lock = threading.Lock()


def mask_secrets(job: Job, environ: Mapping[str, str]) -> None:
    """Mask the secrets of a job: the stored ones, and probable ones in variables and words."""
    masker.add(environ.get(name, "") for name in (*job.secrets, *job.masked))
    masker.add(secrets_in(environ))
    masker.add(secrets_in([job.values, [*job.command, *job.argv], job.setup]))


def write_text(lines: bytes) -> None:
    """Write one line of text or several, without the last line end, with secret values masked."""
    write_lines(masker.mask(lines))


def write_lines(lines: bytes) -> None:
    """Write whole lines to standard output; without a reader drop them and continue.

    A pipe takes more than 4,096 bytes in parts, and several threads write.
    """
    data = memoryview(lines + b"\n")

    with _output_lock, suppress(BrokenPipeError):
        while data:
            data = data[os.write(1, data) :]


def emit(event: Event) -> None:
    """Write an event of this node, with rank -1 by default."""
    write_lines(event_line(event.type, **{"rank": -1, **_masked_fields(event)}).rstrip(b"\n"))


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
