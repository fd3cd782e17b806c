"""Runs that end with the process that starts them, where a machine is only lent to that process.

A supervisor outlives the program that has started it. On a machine that a scheduler lends, such as
a node of a Ray cluster, it must not: the scheduler counts the machine as free again as soon as that
program has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain_launcher.process_identity import ProcessIdentity

_tied: list[int] = []
"""The process whose runs end with it: it says so for itself, and not for its forks."""


def end_runs_with_this_process() -> None:
    """From now on, each run that this process starts is stopped within seconds after this process
    has ended.
    """
    _tied[:] = [os.getpid()]


@contextmanager
def runs_end_with_this_process() -> Iterator[None]:
    """A context in which the runs that this process starts do so."""
    before = list(_tied)
    end_runs_with_this_process()
    try:
        yield
    finally:
        _tied[:] = before


def lifeline() -> list[str]:
    """What a supervisor is given as its last argument, if its run is to end with this process; else
    nothing.
    """
    return [json.dumps(ProcessIdentity.of(os.getpid()).to_json())] if _tied == [os.getpid()] else []


def read_lifeline(arguments: list[str]) -> ProcessIdentity | None:
    """The process that a run ends with, from what `lifeline` gave; None if there is none."""
    return ProcessIdentity.from_json(json.loads(arguments[0])) if arguments else None
