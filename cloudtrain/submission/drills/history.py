"""History of a drilled job: progress of each start of its ranks, resume point and saved files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from cloudtrain_launcher.events import (
    RESTART_ELSEWHERE,
    Checkpoint,
    Ended,
    Event,
    Metrics,
    Progress,
    Restarted,
    Resumed,
    StopRequested,
)


@dataclass(kw_only=True, slots=True)
class Attempt:
    """Start of the ranks: the first of a run, or a restart in place."""

    steps: list[float] = field(default_factory=list)
    """Reported steps in order."""
    saved: list[float] = field(default_factory=list)
    """Steps of reported checkpoints in order."""
    resumed_at: float | None = None
    """Step of the checkpoint that it resumed from, if reported."""


@dataclass(kw_only=True, slots=True)
class RunHistory:
    """History of one run of a drilled job."""

    attempts: list[Attempt] = field(default_factory=list)
    """Attempts with reports; at least one."""
    restart_reasons: list[str] = field(default_factory=list)
    """Distinct reasons for restarts in place, from the responsible node."""
    stopping_seconds: float | None = None
    """Seconds from the stop to the end of the run; None if it was not stopped."""
    ended: float = 0.0
    """Unix timestamp of the end; 0: it continues."""

    @property
    def last_step(self) -> float | None:
        """Last reported step; None for a program without steps."""
        return max((step for attempt in self.attempts for step in attempt.steps), default=None)


def history_of(events: Iterable[Event]) -> RunHistory:
    """Return the history of one run from its events, in the order of writing."""
    history = RunHistory()
    attempt = Attempt()
    stopped = 0.0

    for event in events:
        match event:
            case Restarted():
                if (
                    event.why not in ("", RESTART_ELSEWHERE)
                    and event.why not in history.restart_reasons
                ):
                    history.restart_reasons.append(event.why)

                # Every node reports the restart.
                if attempt.steps or attempt.resumed_at is not None:
                    history.attempts.append(attempt)
                    attempt = Attempt()
            case Resumed() if event.step is not None:
                attempt.resumed_at = event.step
            case Metrics() | Progress() if event.step is not None:
                attempt.steps.append(event.step)
            case Checkpoint() if event.step is not None:
                attempt.saved.append(event.step)
            case StopRequested():
                stopped = event.time
            case Ended():
                history.ended = event.time

    history.attempts.append(attempt)
    if stopped and history.ended:
        history.stopping_seconds = max(0.0, history.ended - stopped)

    return history


def stride(steps: Sequence[float]) -> float:
    """Return the smallest distance between two reports, or 1 if unknown."""
    unique = sorted(set(steps))
    return min((after - before for before, after in pairwise(unique)), default=1.0)


def began_anew(runs: Sequence[RunHistory], reference: RunHistory) -> bool:
    """Return whether a restart repeated the first reported step after later ones."""
    first = min(
        (step for attempt in reference.attempts for step in attempt.steps[:1]), default=None
    )
    attempts = [attempt for run in runs for attempt in run.attempts]
    reached = 0.0

    for number, attempt in enumerate(attempts):
        is_restart = number and attempt.steps and attempt.resumed_at is None
        if is_restart and first is not None and attempt.steps[0] <= first < reached:
            return True

        reached = max([reached, *attempt.steps, *attempt.saved])

    return False


def steps_done_again(runs: Sequence[RunHistory], reference: RunHistory) -> float | None:
    """Return the number of steps that a restart repeated, or None without reported steps.

    A program without a reported resume point resumed one report before its first.
    """
    between = stride([step for attempt in reference.attempts for step in attempt.steps])
    attempts = [attempt for run in runs for attempt in run.attempts]

    if reference.last_step is None:
        return None

    lost = 0.0
    reached = 0.0
    for number, attempt in enumerate(attempts):
        if number and (attempt.steps or attempt.resumed_at is not None):
            begun = attempt.resumed_at
            if begun is None:
                begun = max(0.0, attempt.steps[0] - between)

            lost += max(0.0, reached - begun)
            reached = begun

        reached = max([reached, *attempt.steps, *attempt.saved])

    return lost


UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".restoring", ".incomplete")
"""Suffixes of files and folders that are still being written."""

Listing = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and change time of each file."""


class SavedFiles:
    """Counter of checkpoints: one more whenever the files in their folder changed and settled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self._counted = self._before = frozenset[tuple[str, int, int, int]]()

    def look(self) -> int:
        """Look at the folder and return the current number of checkpoints."""
        current = listing(self.folder)
        if current == self._before and current - self._counted:
            self.count += 1
            self._counted = current

        self._before = current
        return self.count


def listing(folder: Path) -> Listing:
    """Return the finished files below a folder."""
    entries = []
    for path in _files(folder):
        try:
            status = path.stat()
        except OSError:  # just removed
            continue

        entries.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))

    return frozenset(entries)


def newest_file(folder: Path, names: tuple[str, ...] = ()) -> Path | None:
    """Return the largest file of the newest checkpoint, the last changed entry, or None.

    `names`: entries known to be checkpoints; if empty, every entry may be one.
    """
    entries: dict[str, list[Path]] = {}
    for path in _files(folder):
        entries.setdefault(path.relative_to(folder).parts[0], []).append(path)

    candidates = {name: files for name, files in entries.items() if name in names} or entries
    if not candidates:
        return None

    newest = max(
        candidates.values(), key=lambda files: max(path.stat().st_mtime_ns for path in files)
    )
    return max(newest, key=lambda path: path.stat().st_size)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_unfinished(name)]
        for name in names:
            path = Path(parent, name)
            if not _is_unfinished(name) and not path.is_symlink():
                yield path


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(UNFINISHED)
