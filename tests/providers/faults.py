"""Faults in many calls of one command: each call fails once, and the test proves that it covers
all.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.faults import FaultKind
from tests.fakes.server import Server

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
