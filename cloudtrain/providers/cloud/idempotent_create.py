"""Creates one job or none, although answers may be lost, and finds out later what became of a submission."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container
from typing import Any

from cloudtrain.errors import NOTHING_STARTED, CloudError, Outcome, RunExists
from cloudtrain.runs.events import Creating, Ended, Event, Submitted
from cloudtrain.runs.folder import RunFolder

CREATE_TIMEOUT_SECONDS = 60
"""If a request was sent and no job exists after this long, none will be created."""

BACKOFF_SECONDS = 1.0
"""At most this long before the second attempt, and twice as long before each further one."""

FindJob = Callable[[], dict[str, Any] | None]
"""Looks for our job and returns its reference; None if no job has its name. RunExists if another job has it."""


def create(
    name: str, send: Callable[[], dict[str, Any]], find: FindJob, *, attempts: int, name_taken_codes: Container[str]
) -> dict[str, Any]:
    """Send the request up to `attempts` times, with backoff; returns the reference of the job.

    After a failure that leaves the outcome unknown, `find` looks whether the job exists. `send` must send exactly once:
    an SDK's own retries would hide that an earlier attempt had succeeded. `name_taken_codes`: error codes which say
    that the name is taken, perhaps by an earlier attempt whose answer was lost. CloudError with `Outcome.UNKNOWN` if it
    stays unknown.
    """
    is_unknown = False
    for attempt in range(attempts):
        if attempt:
            time.sleep(random.random() * BACKOFF_SECONDS * 2 ** (attempt - 1))
        try:
            return send()
        except CloudError as error:
            is_unknown |= error.outcome is Outcome.UNKNOWN or error.code in name_taken_codes
            failure = error
        if not is_unknown and not failure.transient:
            raise failure
        if is_unknown:
            found = _find_after_failure(name, find, failure)
            if found is not None:
                return found
            if not failure.transient:
                break
    raise _outcome_unknown(name, failure) if is_unknown else failure


def reconcile(run: RunFolder, now: float, find: FindJob, service: str) -> list[Event]:
    """Events that say what became of a submission that was interrupted; none while it may still be in progress.

    `service`: the cloud's name in messages.
    """
    if run.is_being_submitted():
        return []
    creating = run.last_event(Creating)
    if creating is None:  # the request was never sent: there is nothing to ask for
        return [_not_started(now, f"submit was interrupted before the job was created; {NOTHING_STARTED}")]
    try:
        reference = find()
    except RunExists:
        return [_not_started(now, f"another job of the name {run.run_id} exists; {NOTHING_STARTED}")]
    if reference is not None:
        return [Submitted(time=now, ref=reference)]
    if now - creating.time < CREATE_TIMEOUT_SECONDS:
        return []
    message = f"submit was interrupted, and {service} knows no job {run.run_id}; {NOTHING_STARTED}"
    return [_not_started(now, message)]


def _find_after_failure(name: str, find: FindJob, failure: CloudError) -> dict[str, Any] | None:
    try:
        return find()
    except CloudError as error:
        raise _outcome_unknown(name, failure) from error


def _outcome_unknown(name: str, failure: CloudError) -> CloudError:
    hint = f"cloudtrain status {name} asks again; the same name never starts a second job"
    message = f"{failure.what}; whether the job {name} exists is not known yet"
    return CloudError(message, hint=hint, code=failure.code, outcome=Outcome.UNKNOWN)


def _not_started(now: float, reason: str) -> Ended:
    return Ended(time=now, state="failed", reason=reason)
