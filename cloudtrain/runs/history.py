"""The events of a run and the state that they add up to: the one place where observations are appended and folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloudtrain.runs.events import Event
from cloudtrain.runs.fold import fold
from cloudtrain.runs.log_sync import sync_logs
from cloudtrain.runs.observation import Observation
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunFolder


class History:
    """One run as its events tell it. `state` is one object, kept up to date in place."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.state = RunState(run_id=folder.run_id)
        self.damaged_lines = 0
        """Lines among its events that are none: a writer was killed, a disk was full, or somebody has changed them."""
        self._offset = 0

    def read(self) -> RunState:
        """The state by all events that are there now; only those that are new are read."""
        return fold(self.folder.run_id, self._new_events(), self.state)

    def take(self, observations: Iterable[Observation], *, durable: bool = False) -> bool:
        """Write each observation down, and fold it, before the next one is asked for; whether any held an event.

        So who observes sees in the state what the lines that were just read have said. `durable`: events are on disk
        before this returns.
        """
        is_news = False
        for seen in observations:
            is_news |= bool(seen.events)
            if seen.events:
                self.folder.append(*seen.events, durable=durable)
            if seen.lines is not None:
                sync_logs(self.folder, seen.lines)
            self.read()
        return is_news

    def record(self, seen: Observation) -> None:
        """Write one observation down, on disk before this returns: see `Record`."""
        self.take([seen], durable=True)

    def _new_events(self) -> Iterator[Event]:
        for event, offset in self.folder.events_from(self._offset):
            self._offset = offset
            if event is not None:
                yield event
            else:
                self.damaged_lines += 1
