"""End runs with the process that starts them, on a machine that is lent to that process.

A supervisor outlives its program. On a machine lent by a scheduler, such as a node of a Ray
cluster, it must not: the scheduler counts the machine as free once that program has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain_launcher.process_identity import ProcessIdentity

_tied: list[int] = []
"""Process whose runs end with it; its forks do not count."""


def end_runs_with_this_process() -> None:
    """Stop each run that this process starts from now on soon after this process ends."""
    _tied[:] = [os.getpid()]


@contextmanager
def runs_end_with_this_process() -> Iterator[None]:
    """Open a context for runs that end with this process."""
    before = list(_tied)
    end_runs_with_this_process()
    try:
        yield
    finally:
        _tied[:] = before


def lifeline() -> list[str]:
    """Return the supervisor's last argument if its run is to end with this process."""
    return [json.dumps(ProcessIdentity.of(os.getpid()).to_json())] if _tied == [os.getpid()] else []


def read_lifeline(arguments: list[str]) -> ProcessIdentity | None:
    """Return the process that a run ends with, from the result of `lifeline`, or None."""
    return ProcessIdentity.from_json(json.loads(arguments[0])) if arguments else None
