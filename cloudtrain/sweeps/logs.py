"""Log lines of a sweep's trials by time, existing and new ones; and why trials failed."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cloudtrain.api.monitor import LogStream, RunMonitor
from cloudtrain.diagnosis.failure import Diagnosis, diagnose_run
from cloudtrain.errors import RunNotFound
from cloudtrain.runs.logs import LogBlock
from cloudtrain.runs.state import RunState
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.sweep import Sweep

POLL_SECONDS = 0.2
"""Interval of reads of runs that end shortly after their sweep."""

TrialLines = tuple[int, LogBlock]
"""Number of a trial, and lines of one of its runs."""


class SweepLogs:
    """Logs of all trials; later runs join. `filters`: as for `Run.logs`."""

    def __init__(self, sweep: Sweep, **filters: Any) -> None:
        self._sweep = sweep
        self._filters = filters
        self._streams: dict[str, tuple[int, LogStream]] = {}
        """Trial and stream of each run."""

    def stored(self, *, tail: int | None = None, retry: bool = False) -> Iterable[TrialLines]:
        """Return existing lines, oldest first; with `tail` only the last N of all trials."""
        self._join(self._sweep.status())
        merged = self._merged(lambda stream: stream.stored(tail=tail, retry=retry))
        if tail is None:
            return merged

        return deque(merged, maxlen=tail)

    def fresh(self) -> Iterator[TrialLines]:
        """Yield new lines until the end of the sweep. Raise UsageError if nothing drives it."""
        for update in self._sweep.watch():
            self._join(update.state)
            yield from self._merged(LogStream.fresh)

        while any(not stream.has_ended for _, stream in self._streams.values()):
            time.sleep(POLL_SECONDS)
            yield from self._merged(LogStream.fresh)

    def _join(self, state: SweepState) -> None:
        """Open streams for runs that were started."""
        for trial in state.trials:
            started = {run.run for run in trial.runs}
            if started <= self._streams.keys():
                continue

            for run in self._sweep.runs_of(trial):
                if run.id not in self._streams:
                    stream = LogStream(RunMonitor(run.folder), **self._filters)
                    self._streams[run.id] = (trial.number, stream)

    def _merged(self, read: Callable[[LogStream], Iterator[LogBlock]]) -> Iterator[TrialLines]:
        """Merge the lines of open streams by time; runs of a trial come one after the other."""
        trials: dict[int, list[LogStream]] = {}
        for number, stream in self._streams.values():
            if not stream.has_ended:
                trials.setdefault(number, []).append(stream)

        parts = [_numbered(number, map(read, streams)) for number, streams in trials.items()]
        return heapq.merge(*parts, key=lambda part: part[1].time)


def _numbered(number: int, streams: Iterable[Iterator[LogBlock]]) -> Iterator[TrialLines]:
    return ((number, line) for line in chain.from_iterable(streams))


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTrials:
    """Trials that failed for the same reason."""

    diagnosis: Diagnosis
    """Diagnosis of the first one."""
    trials: tuple[int, ...]
    runs: tuple[str, ...]
    """Latest run of each."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json`."""
        return {
            "trials": list(self.trials),
            "runs": list(self.runs),
            "failure": self.diagnosis.to_json(),
        }


def failed_trials(sweep: Sweep) -> list[FailedTrials]:
    """Return the failed trials by cause, the most frequent first.

    Raise StorageError if a run cannot be read.
    """
    status = sweep.status()
    groups: dict[str, list[tuple[Trial, Diagnosis]]] = {}
    for trial in status.trials:
        if trial.state != "failed":
            continue

        try:
            run = sweep.run_of(trial)
        except RunNotFound:  # it was never started
            groups.setdefault(trial.reason, []).append(
                (trial, Diagnosis(cause=trial.reason, confidence="none"))
            )
            continue

        state = run.cached_status()
        diagnosis = diagnose_run(run.folder, state)
        groups.setdefault(_key(diagnosis, state), []).append((trial, diagnosis))

    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0][0].number))
    return [_together(group) for group in ordered]


def _key(diagnosis: Diagnosis, state: RunState) -> str:
    """Return a key that failures of one cause share, whatever numbers their messages contain."""
    if diagnosis.rule and not diagnosis.rule.is_consequence:
        return diagnosis.rule.name
    cause = state.error
    if not cause:
        return diagnosis.cause

    return f"{cause.exception} at {cause.file}:{cause.line}"


def _together(group: Sequence[tuple[Trial, Diagnosis]]) -> FailedTrials:
    trials = [trial for trial, _ in group]
    return FailedTrials(
        diagnosis=group[0][1],
        trials=tuple(trial.number for trial in trials),
        runs=tuple(trial.run for trial in trials),
    )
