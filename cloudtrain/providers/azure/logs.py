"""Read the logs of a job's nodes, from where they were read last."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.azure.config import client_of_run
from cloudtrain.providers.shared.log_attempt import backfill
from cloudtrain.runs.logs import LogPart, Observation, Positions

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

LOG = re.compile(r"(?:.*/)?user_logs/std_log(?:_process_(\d+))?\.txt")
"""Name of a process's log; without a number if there is only one.

The SDK streams only the first.
"""

MAX_READS = 8
"""Reads per log and call; the rest follows at the next call."""


def backfill_logs(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield all log lines of a job that is over."""
    cloud = client_of_run(run)

    def read(positions: Positions) -> Generator[LogPart, None, bool]:
        logs = logs_of(cloud.details(run.run_id) or {})
        return (yield from new_lines(cloud, logs, positions, is_over=True))

    return backfill(read, state)


def logs_of(details: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the signed URLs of a job's logs, by log name."""
    return details.get("logFiles") or {}


def new_lines(
    cloud: Workspace,
    logs: Mapping[str, str],
    positions: Positions,
    *,
    is_over: bool,
) -> Generator[LogPart, None, bool]:
    """Yield the new lines of all nodes; return True if all of them were read.

    `logs`: signed URLs by name, from the run history. `is_over`: the job has ended, so text after
    the last newline is a line too.
    """
    complete = True
    for name in sorted(logs):
        match = LOG.fullmatch(name)
        if match is not None:
            position = positions.get(name, {})
            node = int(match[1] or 0)
            complete &= yield from _new_lines_of(
                cloud,
                name,
                logs[name],
                node,
                position,
                is_over=is_over,
            )

    return complete


def _new_lines_of(
    cloud: Workspace,
    name: str,
    address: str,
    node: int,
    position: Mapping[str, Any],
    *,
    is_over: bool,
) -> Generator[LogPart, None, bool]:
    # Offset of the next byte, and creation time: after a preemption a new log replaces the old one.
    place = {"offset": 0, "created": "", **position}
    for _ in range(MAX_READS):
        part = cloud.read_log(address, place["offset"], place["created"])
        if part is None:
            return True
        lines = part.data[: part.data.rfind(b"\n") + 1]
        # Text without a newline counts at the end of the log, or if it alone fills the chunk.
        takes_all = is_over
        if part.more:
            takes_all = not lines

        text = part.data if takes_all else lines
        place |= {"offset": part.start + len(text), "created": part.created}
        if not text:
            return True
        read_at = time.time()  # Azure ML's logs lack timestamps
        texts = text.removesuffix(b"\n").split(b"\n")
        lines_read = [(read_at, line.rstrip(b"\r")) for line in texts]
        yield LogPart(
            node=node,
            lines=lines_read,
            stream=name,
            position=dict(place),
        )
        if not part.more:
            return True

    return False
