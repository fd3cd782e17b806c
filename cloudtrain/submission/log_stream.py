"""Log of a run as it grows: stored lines, then new ones, filtered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.runs.logs import LogLine, LogReader

if TYPE_CHECKING:
    from cloudtrain.submission.monitor import RunMonitor


class LogStream:
    """Lines of all nodes of a run, each once. Filters as in `Run.logs`.

    Raise UsageError for an invalid `grep`.
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
        """True if the run had ended before the last `fresh` read, so that no line follows."""

    def stored(self, *, tail: int | None, retry: bool) -> Iterator[LogLine]:
        """Yield the stored lines, oldest first; with `tail` only the last ones.

        Then raise CloudError if the cloud does not return the others; with `retry`, only if asking
        again cannot help.
        """
        failure = self._monitor.sync_logs(retry=retry)
        if tail is None:
            yield from filter(self._is_wanted, self._reader.read_all())
        else:
            yield from reversed(self._latest(tail))
        if failure is not None:  # after the stored lines
            raise failure

    def _latest(self, count: int) -> list[LogLine]:
        """Return the last `count` lines, latest first. All stored lines count as read."""
        lines: list[LogLine] = []
        for line in self._reader.read_backward():
            if len(lines) >= count:
                break
            if self._is_wanted(line):
                lines.append(line)
        return lines

    def fresh(self) -> Iterator[LogLine]:
        """Yield the lines since the last call. May raise CloudError."""
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
