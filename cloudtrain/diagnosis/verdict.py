"""The launcher's verdict: the last line of a node's log, which names the rank that failed."""

from __future__ import annotations

import re

from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain_wire.causes import is_consequence
from cloudtrain_wire.events import Cause

_VERDICT = re.compile(
    r"failed: (?:rank (?P<rank>\d{1,6}) \(node (?P<node>\d{1,6})\)|node (?P<alone>\d{1,6}):)"
    r" (?:raised (?P<raised>\w{1,200})(?:: |$))?"
    r"(?P<message>(?:was killed by (?P<signal>SIG\w+))?.*)"
)
"""Pattern of a line that `report_failure` of the launcher writes."""


def verdict_of(line: Evidence) -> Cause | None:
    """Return the cause that a launcher's line names; None for any other line.

    `cloudtrain_wire.causes.one_line` of the cause is the text of the line again.
    """
    match = _VERDICT.match(line.text)
    if match is None or line.rank is not None or line.node is None:
        return None

    raised = match["raised"]
    message = match["message"]
    return Cause(
        rank=int(match["rank"] or -1),
        node=int(match["node"] or match["alone"]),
        time=0.0,
        exception=raised or match["signal"] or "exit",
        message=message,
        traceback=f"{raised}: {message}" if raised else "",
        consequence=is_consequence(raised or "", message),
    )
