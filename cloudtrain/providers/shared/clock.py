"""Check of this machine's clock against the cloud's."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from cloudtrain.checkup import Check, Question
from cloudtrain.units import format_duration

MAX_SECONDS = 120
"""Maximum difference between the clocks.

AWS refuses a signature that is 5 minutes off ("Signing AWS API requests"), storage services 15;
tokens are less patient with a slow clock.
"""

CLOCK = Question("clock", "does it agree with the cloud's")


def clock_check(date: str, local_time: float) -> Check:
    """Check the header `Date` of a response against a Unix timestamp of this machine's clock."""
    try:
        off = local_time - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return CLOCK.not_checked("the cloud's answer lacks a date")
    if abs(off) <= MAX_SECONDS:
        return CLOCK.found("it does")

    way = "fast" if off > 0 else "slow"
    return CLOCK.wrong(f"it is {format_duration(abs(off))} {way}", "sudo timedatectl set-ntp true")
