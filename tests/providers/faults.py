"""Faults in the calls of a command: each call fails once, or gets a foreign answer."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudtrain
from cloudtrain.api.doctor import platform_checks
from cloudtrain.api.run import Run
from cloudtrain.checkup import Check
from cloudtrain.errors import CloudError, CloudtrainError, Outcome
from cloudtrain.providers import get_provider
from tests.fakes.messages import Call, FaultKind, ServiceError
from tests.fakes.server import Server

# Faults in many calls of one command: each call fails once, and the test proves that it covers all.

TRANSIENT: tuple[FaultKind, ...] = ("throttle", "error", "lost", "refused_lost", "slow")
PERMANENT: tuple[FaultKind, ...] = ("expired", "denied")
NthCall = tuple[str, str, int]
"""Service, operation, and which call of that name it is."""


def name_of(call: NthCall) -> str:
    """Return the id of a call in the names of tests."""
    _, operation, nth = call
    return operation if nth == 1 else f"{operation}{nth}"


def run_id_of(*words: object) -> str:
    """Return a run id made of the parameters of a test."""
    text = "-".join(str(word).lower() for word in words)
    return text.replace("_", "-").replace(",", "").replace(" ", "-")


def fault_each(endpoint: Server, kind: FaultKind, calls: Iterable[NthCall]) -> None:
    """Let each of these calls go wrong once: where it is tried again, that is a call of the same
    name.
    """
    for service, operation, nth in calls:
        endpoint.fault(
            kind, service, operation, nth=nth if kind == "slow" else 2 * nth - 1, seconds=0.05
        )


def assert_each_struck(endpoint: Server, kind: FaultKind, calls: Iterable[NthCall]) -> None:
    """None of the faults of `fault_each` was left out."""
    assert sorted(endpoint.struck) == sorted(
        (kind, (service, operation)) for service, operation, _ in calls
    )


# Strikes each call that the client makes with answers that are not the service's, one at a time.

BODY_FAULTS: tuple[FaultKind, ...] = ("html", "proxy", "empty", "half")
"""Answers that are not the service's: a page with status 200 or 403, none, half of one."""

ALWAYS_FOREIGN = 99
"""More often than anybody asks again."""

CREATING = ("CreateTrainingJob", "CreateHyperParameterTuningJob", "PutJob", "SubmitServiceJob")
"""Calls after which there may be a job."""

Do = Callable[[], object]


def calls_by_operation(endpoint: Server, operations: Mapping[str, Do]) -> dict[Call, str]:
    """Return every call that operations of the client make, with the first operation that makes it."""
    answers: dict[Call, str] = {}
    for name, do in operations.items():
        endpoint.reset()
        do()
        for call in endpoint.calls:
            answers.setdefault(call, name)
    return answers


def complaints(
    endpoint: Server,
    operations: Mapping[str, Do],
    calls: Mapping[Call, str],
    unharmed: Iterable[Call],
    thorough: bool,
) -> Iterator[str]:
    """Yield the mistakes of an operation when one of its calls always gets such an answer.

    `unharmed`: calls whose failure an operation may ignore. Unless `thorough`, each call gets one
    of the answers, and a call that creates a job gets all.
    """
    for number, (call, name) in enumerate(calls.items()):
        has_all = thorough or call.operation in CREATING
        one = BODY_FAULTS[number % len(BODY_FAULTS)]
        for kind in BODY_FAULTS if has_all else (one,):
            yield from _complaints_about(endpoint, operations[name], name, call, kind, unharmed)


def _complaints_about(
    endpoint: Server,
    do: Do,
    name: str,
    call: Call,
    kind: FaultKind,
    unharmed: Iterable[Call],
) -> Iterator[str]:
    endpoint.reset()
    endpoint.fault(kind, *call, times=ALWAYS_FOREIGN)
    try:
        do()
    except CloudError as error:
        if call.operation in CREATING:
            if error.outcome is not Outcome.UNKNOWN:
                yield f"{name}: {call.operation}: {error.outcome}: {error.render()}"
        elif not error.transient:
            yield f"{name}: {call.operation}: not transient: {error.render()}"
        elif "cannot be read" not in error.message:
            yield f"{name}: {call.operation}: says something else: {error.render()}"
    except Exception as error:  # noqa: BLE001  (what must not happen)
        last = traceback.extract_tb(error.__traceback__)[-1]
        yield (
            f"{name}: {call.operation}: {type(error).__name__}: {error}"
            f" ({last.filename}:{last.lineno})"
        )
    else:
        if call in endpoint.altered and call not in unharmed:
            yield f"{name}: {call.operation}: took it for an answer"


# Messages to a user about a whole account.


def checks_for(provider: str, spec: dict[str, Any]) -> list[Check]:
    """Return the checks of a job's plan, in the account of this process's credentials."""
    return list(platform_checks(cloudtrain.plan(cloudtrain.load(spec), provider)))


def failure(do: Do) -> str:
    """Return an operation's error message, or an empty text."""
    try:
        do()
    except CloudtrainError as error:
        return error.render()
    except ServiceError as error:  # of a protocol that is not the client's
        return error.message
    return ""


def fetch_model(provider: str, run: Run) -> None:
    """Fetch the model of a run as its provider does."""
    target = Path(f"fetched-{time.time_ns()}").absolute()
    target.mkdir()
    state = run.cached_status()
    fetch = get_provider(provider).fetch
    assert fetch(run.folder, state, ["model"], target, None, lambda _: None) == ["model"]
