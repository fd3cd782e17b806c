"""Bringing a job's log lines into the run folder: all nodes', each line once, resumable at any time."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudtrain.providers.cloud.log_sync import Mirror, reading
from cloudtrain.runs.store import RunFolder

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

LOG = re.compile(r"(?:.*/)?user_logs/std_log(?:_process_(\d+))?\.txt")
"""What a process printed; of one process alone, without its number. (The SDK shows that of the first only.)"""

MOST_READS = 8
"""Per log and look: a flood of lines is brought in turns."""


def pull(cloud: Workspace, run: RunFolder, logs: Mapping[str, str], *, whole: bool) -> bool:
    """Bring what is new of all nodes; True when nothing more is there for now. One process reads at a time.

    `logs`: their addresses by name, as the run history has them. `whole`: the job is over, and what comes after the
    last end of a line is a line too.
    """
    with reading(run) as alone:
        if not alone:
            return False
        mirror = Mirror(run)
        drained = True
        for name in sorted(logs):
            found = LOG.fullmatch(name)
            if found is not None:
                drained &= _pull_log(cloud, mirror, name, logs[name], int(found[1] or 0), whole=whole)
        return drained


def _pull_log(cloud: Workspace, mirror: Mirror, name: str, address: str, node: int, *, whole: bool) -> bool:
    # The next byte to read, and when the log was created: after a preemption another one takes its place.
    place = mirror.streams.setdefault(name, {"offset": 0, "created": ""})
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
        mirror.keep(node, [(now, line.rstrip(b"\r")) for line in complete.removesuffix(b"\n").split(b"\n")])
        if not part.more:
            return True
    return False
