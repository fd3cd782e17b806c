"""Read the logs of a job's nodes, from where they were read last."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.azure.config import client_of_run
from cloudtrain.providers.shared.log_attempt import backfill
from cloudtrain.runs.logs import LogPart, Observation, Positions

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.storage import LogChunk
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

LOG = r"(?:.*/)?user_logs/std_log(?:_process_(\d+))?\.txt"
"""Name of a process's log; without a number if there is only one.

The SDK streams only the first.
"""

MAX_READS = 8
"""Reads per log and call; the rest follows at the next call."""

READS_AT_ONCE = 8
"""Logs that are read at the same time."""


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
    names = sorted(name for name in logs if re.fullmatch(LOG, name))
    places = {name: {"offset": 0, "created": "", **positions.get(name, {})} for name in names}

    def read(name: str) -> LogChunk | None:
        return cloud.read_log(logs[name], places[name]["offset"], places[name]["created"])

    complete = True
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        for start in range(0, len(names), READS_AT_ONCE):
            batch = names[start : start + READS_AT_ONCE]
            for name, chunk in zip(batch, pool.map(read, batch), strict=True):
                lines = _new_lines_of(
                    name, chunk, places[name], partial(read, name), is_over=is_over
                )
                complete &= yield from lines

    return complete


def _new_lines_of(
    name: str,
    part: LogChunk | None,
    place: dict[str, Any],
    read: Callable[[], LogChunk | None],
    *,
    is_over: bool,
) -> Generator[LogPart, None, bool]:
    """Yield the new lines of one log. `part`: what was read of it; `read` returns what follows.

    `place`: offset of the next byte, and creation time: after a preemption a new log replaces the
    old one.
    """
    for number in range(MAX_READS):
        if number:
            part = read()
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
            node=_node_of(name),
            lines=lines_read,
            stream=name,
            position=dict(place),
        )
        if not part.more:
            return True

    return False


def _node_of(name: str) -> int:
    match = re.fullmatch(LOG, name)
    return int((match and match[1]) or 0)
