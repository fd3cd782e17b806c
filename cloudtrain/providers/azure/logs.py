"""A job's log lines: what is new of each node's log, from where it was left at any time."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.runs.observation import LogPart, Positions

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

LOG = re.compile(r"(?:.*/)?user_logs/std_log(?:_process_(\d+))?\.txt")
"""What a process printed; of one process alone, without its number. (The SDK shows that of the first only.)"""

MOST_READS = 8
"""Per log and look: a flood of lines is brought in turns."""


def new_lines(
    cloud: Workspace, logs: Mapping[str, str], positions: Positions, *, whole: bool
) -> Generator[LogPart, None, bool]:
    """What is new of all nodes. Its value: whether nothing more is there for now.

    `logs`: their addresses by name, as the run history has them. `whole`: the job is over, and what comes after the
    last end of a line is a line too.
    """
    drained = True
    for name in sorted(logs):
        found = LOG.fullmatch(name)
        if found is not None:
            at = positions.get(name, {})
            drained &= yield from _of_log(cloud, name, logs[name], int(found[1] or 0), at, whole=whole)
    return drained


def _of_log(
    cloud: Workspace, name: str, address: str, node: int, position: Mapping[str, Any], *, whole: bool
) -> Generator[LogPart, None, bool]:
    # The next byte to read, and when the log was created: after a preemption another one takes its place.
    place = {"offset": 0, "created": "", **position}
    for _ in range(MOST_READS):
        part = cloud.read_log(address, place["offset"], place["created"])
        if part is None:
            return True
        lines = part.data[: part.data.rfind(b"\n") + 1]
        # What has no end of line is brought when it is the last, and when it is longer than one can wait for.
        complete = part.data if (not lines if part.more else whole) else lines
        place |= {"offset": part.start + len(complete), "created": part.created}
        if not complete:
            return True
        now = time.time()  # Azure ML's logs have no times
        lines_read = [(now, line.rstrip(b"\r")) for line in complete.removesuffix(b"\n").split(b"\n")]
        yield LogPart(node=node, lines=lines_read, stream=name, position=dict(place))
        if not part.more:
            return True
    return False
