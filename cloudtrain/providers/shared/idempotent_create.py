"""Create one job or none although answers may be lost, and find out later what happened."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import NOTHING_STARTED, CloudError, CloudtrainError, Outcome, RunExists
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.runs.logs import Observation, Record
from cloudtrain.version import __version__
from cloudtrain_wire.events import Creating, Ended, Event, Phase, Submitted

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

CREATE_TIMEOUT_SECONDS = 60
"""Seconds after the request; if no job exists by then, none will be created."""

NEW_JOB_SECONDS = 300
"""Seconds until every answer of a service shows a job that it has just created.

AWS's own SDK waits this long for a new training job.
"""

BACKOFF_SECONDS = 1.0
"""Maximum pause before the second attempt; it doubles with each further one."""

LONGEST_WAIT_SECONDS = 300
"""Maximum pause that a service may ask for before the next attempt (`Retry-After`)."""

SAID_FROM_SECONDS = 5
"""Minimum length of a pause that becomes the phase of the run."""

REQUEST_TIMEOUT = 408
"""Status of a gateway that gave up waiting, too: the request may have been executed."""

FindJob = Callable[[], dict[str, Any] | None]
"""Returns the reference of our job, or None. Raises RunExists for a stranger's job."""


def tags(plan: Plan, image: str) -> dict[str, str]:
    """Return all tags of a job: ours, then the user's. `image`: the address in the request."""
    context = plan.context
    digest = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    rehearsal = context.rehearsal

    our_tags = {
        "run": plan.run_id,
        "name": plan.spec.name,
        "spec": plan.spec_digest,
        "source": context.source.digest,
        "processes": str(plan.processes),
        "planned": f"{context.time:.3f}",
    }
    if context.owner:
        our_tags["owner"] = context.owner
    if context.git_commit:
        our_tags["git-commit"] = context.git_commit
        if context.git_dirty is not None:
            our_tags["git-dirty"] = str(context.git_dirty).lower()
    if rehearsal and not rehearsal.changes:
        our_tags["rehearsed"] = rehearsal.run
    if context.mlflow_run:
        our_tags["mlflow-run"] = context.mlflow_run
    if digest:
        our_tags["image-digest"] = digest[1]

    our_tags["version"] = __version__
    all_tags = {f"{TAG_PREFIX}{key}": value for key, value in our_tags.items()}
    all_tags.update(plan.spec.tags)
    return all_tags


def own_tags(all_tags: Mapping[str, Any]) -> dict[str, str]:
    """Return our tags among all tags of a job, without their prefix."""
    our_tags = {}
    for key, value in all_tags.items():
        if key.startswith(TAG_PREFIX):
            our_tags[key.removeprefix(TAG_PREFIX)] = str(value)

    return our_tags


def same_submission(expected: Mapping[str, str], actual: Mapping[str, str]) -> bool:
    """Return True if two sets of our tags belong to the same submission.

    Jobs of the same name may belong to different submissions.
    """
    return all(expected.get(key) == actual.get(key) for key in ("run", "planned", "spec"))


class Attempt:
    """One attempt to create a job: how many requests were sent, and the answer to the last one."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.requests = 0
        """Number of requests on the wire; an SDK may repeat one."""
        self.is_refused = False
        """True if the service itself answered the last request with an error of the caller."""
        self.wait_seconds = 0.0
        """Pause that the last answer asked for."""

    def sending(self) -> None:
        """Record that the job may exist from now on. Call right before each request."""
        self._record(Observation(events=[Creating(time=time.time())]))
        self.requests += 1
        self.is_refused = False

    def not_sent(self) -> None:
        """Take back the last `sending`: no connection was made."""
        self.requests -= 1

    def answered(self, status: int, code: str, retry_after: str = "") -> None:
        """Note an answer. `code`: the service's error code; empty if the body has none.

        `retry_after`: the header of that name, seconds or a date.
        """
        self.wait_seconds = _seconds_of(retry_after)
        is_error_of_caller = 400 <= status < 500 and status != REQUEST_TIMEOUT
        self.is_refused = is_error_of_caller and bool(code)

    @property
    def outcome(self) -> Outcome:
        """REFUSED if no request was sent, or exactly one that was refused; else UNKNOWN."""
        was_refused_once = self.requests == 1 and self.is_refused
        if self.requests <= 0 or was_refused_once:
            return Outcome.REFUSED

        return Outcome.UNKNOWN


def create(
    name: str,
    send: Callable[[Attempt], dict[str, Any]],
    find: FindJob,
    *,
    record: Record,
    attempts: int,
    name_taken_codes: Container[str],
) -> dict[str, Any]:
    """Send the request up to `attempts` times, with backoff, and return the reference of the job.

    After a failure that leaves the outcome unknown, `find` looks whether the job exists. `send`
    tells its `Attempt` about each request and answer. `name_taken_codes`: error codes that say
    that the name is taken, perhaps by an earlier attempt whose answer was lost.

    Raise CloudError with `Outcome.UNKNOWN` if it stays unknown whether the job exists.
    """
    is_unknown = False
    attempt = Attempt(record)
    for number in range(attempts):
        if number:
            backoff = random.random() * BACKOFF_SECONDS * 2 ** (number - 1)
            _pause(max(backoff, attempt.wait_seconds), record)
        attempt = Attempt(record)
        try:
            return send(attempt)
        except Exception as error:
            is_ours = attempt.requests <= 0 and not isinstance(error, CloudError)
            if is_ours and not is_unknown:  # such as a full disk
                raise
            failure = _failure_of(attempt, error, name)
        is_unknown |= failure.outcome is Outcome.UNKNOWN or failure.code in name_taken_codes
        if not is_unknown and not failure.transient:
            raise failure
        if is_unknown:
            reference = _find_after_failure(name, find, failure)
            if reference is not None:
                return reference
            if not failure.transient:
                break

    if is_unknown:
        raise _outcome_unknown(name, failure)

    raise failure


def reconcile(run: RunFolder, time_now: float, find: FindJob, service: str) -> list[Event]:
    """Return the events that say what became of a submission without a known job.

    A submission was interrupted, or it ended as not started although its request was sent. Return
    no events while it may still be in progress. `service`: the cloud's name in messages.
    """
    if run.is_being_submitted():
        return []

    creating = run.last_event(Creating)
    has_ended = run.last_event(Ended) is not None

    why = ""
    if creating is None:  # the request was never sent
        why = "submit was interrupted before the job was created"
    else:
        try:
            reference = find()
        except RunExists:
            why = f"another job of the name {run.run_id} exists"
        else:
            if reference is not None:
                return [Submitted(time=time_now, ref=reference)]
            if time_now - creating.time >= CREATE_TIMEOUT_SECONDS:
                why = f"submit was interrupted, and {service} knows no job {run.run_id}"
    if has_ended or not why:
        return []

    return [Ended(time=time_now, state="failed", reason=f"{why}; {NOTHING_STARTED}")]


def settle(
    state: RunState,
    record: Record,
    events: Callable[[], Sequence[Event]],
) -> Mapping[str, Any] | None:
    """Record what became of an interrupted submission; return the job's reference, or None.

    `events`: calls `reconcile`.
    """
    if state.ref is None and (state.may_have_started or not state.has_ended):
        record(Observation(events=events()))

    return state.ref


def is_new(state: RunState, time_now: float) -> bool:
    """Return True while a service may not show the job of a run yet, or not to everybody."""
    return abs(time_now - state.requested) < NEW_JOB_SECONDS


def may_appear(state: RunState, time_now: float) -> bool:
    """Return True while the job of a run that ended as not started may still be shown."""
    return state.may_have_started and is_new(state, time_now)


def _pause(seconds: float, record: Record) -> None:
    """Wait before the next attempt; a long wait is the phase of the run."""
    if seconds >= SAID_FROM_SECONDS:
        phase = f"waiting {seconds:.0f} s before another request, as the service asks"
        record(Observation(events=[Phase(time=time.time(), phase=phase)]))

    time.sleep(seconds)


def _seconds_of(retry_after: str) -> float:
    """Return the pause in a header `Retry-After`, up to the longest; 0 if there is none."""
    if retry_after.isdecimal():
        seconds = float(retry_after)
    else:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0

    return min(max(seconds, 0.0), LONGEST_WAIT_SECONDS)


def _failure_of(attempt: Attempt, error: Exception, name: str) -> CloudError:
    """Return the error of an attempt, with its outcome; unreadable answers are errors, too."""
    if isinstance(error, CloudError):
        failure = error
    else:
        if isinstance(error, CloudtrainError):
            why = error.what
        else:
            why = f"{type(error).__name__}: {error}"

        message = f"the answer to the request that creates {name} is unreadable: {why}"
        if attempt.requests <= 0:
            message = f"the request that creates {name} cannot be repeated: {why}"
        failure = CloudError(message)
        failure.__cause__ = error

    failure.outcome = attempt.outcome
    if failure.outcome is Outcome.UNKNOWN and not attempt.is_refused:
        failure.transient = True

    return failure


def _find_after_failure(name: str, find: FindJob, failure: CloudError) -> dict[str, Any] | None:
    try:
        return find()
    except RunExists:
        raise
    except Exception as error:  # no error proves that the job does not exist
        raise _outcome_unknown(name, failure) from error


def _outcome_unknown(name: str, failure: CloudError) -> CloudError:
    hint = f"cloudtrain status {name} asks again; the same name never starts a second job"
    message = f"{failure.what}; whether the job {name} exists is not known yet"
    return CloudError(message, hint=hint, code=failure.code, outcome=Outcome.UNKNOWN)
