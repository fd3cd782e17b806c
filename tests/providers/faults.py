"""Faults in many calls of one command: each call goes wrong once, and it is proved that none was
left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.faults import FaultKind
from tests.fakes.server import Server

NthCall = tuple[str, str, int]
"""Service, operation, and which call of that name it is."""


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
