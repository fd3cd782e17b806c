"""Records inside events: why something failed, and what a run cost. Standard library only."""

from __future__ import annotations

from cloudtrain_launcher.event_fields import Seconds, Timestamp
from cloudtrain_launcher.event_record import Record


class Cause(Record):
    """Why something failed."""

    rank: int
    """The process that failed; -1: the node itself."""
    node: int
    """The node of that process."""
    time: Timestamp
    """When it failed."""
    exception: str
    """The class of the exception, without its module; a signal's name or `exit` if there was no
    exception.
    """
    message: str
    """Its message, at most 1,000 characters."""
    attempt: int = 0
    """How many times the ranks had been restarted before."""
    file: str = ""
    """The program's file in which it was raised, relative to the job's folder."""
    line: int = 0
    """The line in that file, from 1."""
    code: str = ""
    """That line's text, at most 200 characters."""
    traceback: str = ""
    """The end of Python's traceback, at most 2,500 characters."""
    consequence: bool = False
    """Whether it only says that a peer was lost: then its rank is a victim, not the cause."""
    hint: str = ""
    """What to do about it."""
    stack: str = ""
    """The Python stack that a process printed which C++ or the kernel ended, at most 2,500
    characters.
    """


class Billing(Record):
    """The cost of a run, as far as its cloud tells it."""

    billable_seconds: Seconds | None = None
    """The time that SageMaker bills for each of the run's machines; of spot machines it is less
    than they worked.
    """
    training_seconds: Seconds | None = None
    """How long its machines worked on it."""
    kept_seconds: Seconds | None = None
    """For how long machines were kept after its end, and billed."""
    usd: float | None = None
    """US dollars at list price, of all its machines together; missing where the price is not known.
    """
