"""One job or none: creating it when answers may be lost, and finding out later what became of a submission."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container
from typing import Any

from cloudtrain.errors import NOTHING_STARTED, CloudError, Outcome, RunExists
from cloudtrain.runs.events import Creating
from cloudtrain.runs.folder import RunFolder

ARRIVAL_SECONDS = 60
"""A request that was sent and has made no job after this long will make none."""

Find = Callable[[], dict[str, Any] | None]
"""Looks for our job: what finds it again; None when no job has its name; RunExists when it is somebody else's."""


def create(
    name: str, send: Callable[[], dict[str, Any]], find: Find, *, attempts: int, taken: Container[str]
) -> dict[str, Any]:
    """Try, and after each failure that may pass ask whether the job is there, until it is or patience ends.

    `send` tries once: retries of an SDK would hide that an earlier try may have been the one that counted. `taken`:
    the codes that say that the name is taken, perhaps by a try of ours whose answer was lost.
    """
    is_unknown = False
    for attempt in range(attempts):
        if attempt:
            time.sleep(random.random() * 2**attempt / 2)
        try:
            return send()
        except CloudError as error:
            is_unknown |= error.outcome is Outcome.UNKNOWN or error.code in taken
            failure = error
        if not is_unknown and not failure.transient:
            raise failure
        if is_unknown:
            found = _found(name, find, failure)
            if found is not None:
                return found
            if not failure.transient:
                break
    raise _unknown(name, failure) if is_unknown else failure


def reconcile(run: RunFolder, now: float, find: Find, service: str) -> list[dict[str, Any]]:
    """What became of a submission that nobody has seen the end of. Nothing, while it may still be under way."""
    if run.is_being_submitted():
        return []
    creating = run.last_event(Creating)
    if creating is None:  # the request was never sent: there is nothing to ask for
        return [_never(now, f"submit was interrupted before the job was created; {NOTHING_STARTED}")]
    try:
        ref = find()
    except RunExists:
        return [_never(now, f"another job of the name {run.run_id} exists; {NOTHING_STARTED}")]
    if ref is not None:
        return [{"type": "submitted", "time": now, "ref": ref}]
    if now - creating.time < ARRIVAL_SECONDS:
        return []
    return [_never(now, f"submit was interrupted, and {service} knows no job {run.run_id}; {NOTHING_STARTED}")]


def _found(name: str, find: Find, failure: CloudError) -> dict[str, Any] | None:
    try:
        return find()
    except CloudError as error:
        raise _unknown(name, failure) from error


def _unknown(name: str, failure: CloudError) -> CloudError:
    hint = f"cloudtrain status {name} asks again; the same name never starts a second job"
    message = f"{failure.what}; whether the job {name} exists is not known yet"
    return CloudError(message, hint=hint, code=failure.code, outcome=Outcome.UNKNOWN)


def _never(now: float, reason: str) -> dict[str, Any]:
    return {"type": "ended", "time": now, "state": "failed", "reason": reason}
