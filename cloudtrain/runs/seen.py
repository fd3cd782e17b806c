"""Which events have been met already, in eight bytes for each: a long run has millions."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

_LIMIT = 1 << 63


@dataclass(slots=True)
class Seen:
    """The (node, rank, seq) of events; seq grows from event to event of a rank, so that most come at the end."""

    _known: dict[tuple[int, int], array[int]] = field(default_factory=dict)

    def is_new(self, node: int, rank: int, seq: int) -> bool:
        """Whether it is met for the first time; from now on it is not. TypeError for what is no number."""
        if not -_LIMIT <= seq < _LIMIT:
            return True  # no clock tells such a time: nothing by which to know it again
        known = self._known.setdefault((node, rank), array("q"))
        at = len(known) if not known or seq > known[-1] else bisect_left(known, seq)
        if at < len(known) and known[at] == seq:
            return False
        known.insert(at, seq)
        return True
