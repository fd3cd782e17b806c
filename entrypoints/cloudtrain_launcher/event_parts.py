"""Records inside events: the cause of a failure, and the cost of a run. Standard library only."""

from __future__ import annotations

from cloudtrain_launcher.event_fields import Seconds, Timestamp
from cloudtrain_launcher.event_record import Record


class Cause(Record):
    """The cause of a failure."""

    rank: int
    """The process that failed; -1: the node itself."""
    node: int
    """The node of that process."""
    time: Timestamp
    """The time of the failure."""
    exception: str
    """The exception's class without its module; without an exception a signal's name or `exit`."""
    message: str
    """Its message, at most 1,000 characters."""
    attempt: int = 0
    """The number of restarts of the ranks before."""
    file: str = ""
    """The program's file that raised it, relative to the job's folder."""
    line: int = 0
    """The line in that file, from 1."""
    code: str = ""
    """That line's text, at most 200 characters."""
    traceback: str = ""
    """The end of Python's traceback, at most 2,500 characters."""
    consequence: bool = False
    """True if it only reports a lost peer: its rank is a victim, not the cause."""
    hint: str = ""
    """A solution."""
    stack: str = ""
    """The Python stack printed by a process that crashed below Python, at most 2,500 characters."""


class Billing(Record):
    """The cost of a run, as far as its cloud reports it."""

    billable_seconds: Seconds | None = None
    """The time that SageMaker bills for each machine; on spot it is shorter than the work."""
    training_seconds: Seconds | None = None
    """The time that the machines worked."""
    kept_seconds: Seconds | None = None
    """The time that machines were kept after its end, and billed."""
    usd: float | None = None
    """US dollars at list price, for all machines; missing if the price is unknown."""
