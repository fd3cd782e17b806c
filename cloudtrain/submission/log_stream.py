"""The log of one run as it grows: first the lines that are there, then those that are new,
filtered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.runs.logs import LogLine, LogReader

if TYPE_CHECKING:
    from cloudtrain.submission.monitor import RunMonitor


class LogStream:
    """Lines of all nodes of a run, each told once. The filters are those of `Run.logs`; UsageError
    for a bad `grep`.
    """

    def __init__(
        self,
        monitor: RunMonitor,
        *,
        node: int | None = None,
        rank: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        metrics: bool = True,
    ) -> None:
        try:
            self._pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise UsageError(f"{grep!r} is not a valid regular expression: {error}") from None
        self._monitor = monitor
        self._reader = LogReader(monitor.folder)
        self._node = node
        self._rank = rank
        self._since = since
        self._metrics = metrics
        self.has_ended = False
        """Whether the run had ended before the lines of the latest `fresh` were read: there are no
        others.
        """

    def stored(self, *, tail: int | None, retry: bool) -> Iterator[LogLine]:
        """The lines that are there, oldest first; of a `tail` only the last so many.

        CloudError, after the lines that are here already, when the cloud does not give the others;
        with `retry` not for one that asking again may mend.
        """
        failure = self._monitor.sync_logs(retry=retry)
        if tail is None:
            yield from filter(self._is_wanted, self._reader.read_all())
        else:
            yield from reversed(self._latest(tail))
        if failure is not None:  # what is here is shown all the same
            raise failure

    def _latest(self, count: int) -> list[LogLine]:
        """So many of the lines that are there, the latest first; all of them count as read, also
        where that is 0.
        """
        lines: list[LogLine] = []
        for line in self._reader.read_backward():
            if len(lines) >= count:
                break
            if self._is_wanted(line):
                lines.append(line)
        return lines

    def fresh(self) -> Iterator[LogLine]:
        """The lines that are new since the last call. CloudError when the cloud does not give them."""
        ended = self._monitor.refresh().has_ended
        self._monitor.raise_if_log_unread()
        yield from filter(self._is_wanted, self._reader.read_all())
        self.has_ended = ended

    def _is_wanted(self, line: LogLine) -> bool:
        return (
            (self._node is None or line.node == self._node)
            and (self._rank is None or line.rank == self._rank)
            and (self._since is None or line.time >= self._since)
            and (self._metrics or not line.kind)
            and (self._pattern is None or self._pattern.search(line.text) is not None)
        )
