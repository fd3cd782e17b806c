"""Early end of a sweep's trial, at the report that falls behind. Standard library only.

The client publishes the values of all trials at each rung; at a rung the launcher reads and
compares them. Without polling or requests, a trial that is behind costs no extra step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from cloudtrain_launcher.events import Event, Metrics, RungReached, Warned
from cloudtrain_launcher.metric_reports import MetricReports
from cloudtrain_launcher.published import read_published
from cloudtrain_launcher.rungs import goes_on
from cloudtrain_launcher.trial_memory import TrialMemory

Outcome = Literal["goes_on", "pruned", "paused", "measured"]

RUNGS_FILE = "rungs.json"
"""File of the client: {"version": 1, "rungs": [{"at": 1, "values": {"0": 0.91, "3": null}}]}.

`at` is the report; `values` are by the trials' numbers; null: not a number.
"""


@dataclass(frozen=True)
class Trial:
    """`Job.trial`: the rules of a job's early end as a trial."""

    trial: int
    """Its number, which tells its values from other trials'."""
    metric: str
    goal: str
    """minimize or maximize."""
    rungs: Sequence[int]
    """Numbers of the reports to compare, from 1."""
    eta: int
    until: int | None = None
    """Report before a wait for promotion; None: it only ends at a rung if it is behind."""
    reports: int = 0
    """Number of reports in earlier runs of the trial."""
    position: float | None = None
    """Step of the latest of them, or else the epoch."""
    measures: bool = False
    """True if `until` ends the trial, which only measures the metric."""

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Trial:
        """Return the trial in a job document; ignore fields of a newer version."""
        return Trial(
            **{item.name: document[item.name] for item in fields(Trial) if item.name in document}
        )


class TrialWatch:
    """Counter of a trial's reports that decides at its rungs; later reports are ignored.

    `published`: see `NodeContext`. `report` is called with events, and `end` with `pruned`,
    `paused` or `measured` to end the job here.
    """

    def __init__(
        self,
        trial: Trial,
        published: str,
        report: Callable[[Event], None],
        end: Callable[[str], None],
        memory: TrialMemory,
    ) -> None:
        self._trial = trial
        self._published = published
        self._report = report
        self._end = end
        self._memory = memory
        self._reports: MetricReports | None = (
            None  # until the first one: checkpoints must be restored by then
        )
        self._is_over = False
        self._has_warned = False

    def on_metrics(self, event: Metrics) -> None:
        """Process metrics that the first rank has reported or printed."""
        reports = self._reports or self._begin()
        trial = self._trial
        value = reports.add(event)
        count = reports.count
        if value is None or self._is_over:
            return
        self._memory.write(count, reports.position)
        is_last = trial.until is not None and count >= trial.until
        if not is_last and count not in trial.rungs:
            return
        outcome = self._outcome(count, value, is_last=is_last)
        self._report(RungReached(report=count, value=value, outcome=outcome))
        if outcome != "goes_on":
            self._is_over = True
            self._end(outcome)

    def _begin(self) -> MetricReports:
        before = (self._trial.reports, self._trial.position)
        memory = self._memory.read()
        self._reports = MetricReports(
            self._trial.metric, *(memory if memory[0] > before[0] else before)
        )
        return self._reports

    def _outcome(self, count: int, value: float, *, is_last: bool) -> Outcome:
        trial = self._trial
        if trial.measures:
            return "measured"
        if math.isnan(value):
            return "pruned"
        if trial.until is not None:
            return "paused" if is_last else "goes_on"
        return (
            "goes_on"
            if goes_on(value, self._peer_values(count), trial.eta, trial.goal)
            else "pruned"
        )

    def _peer_values(self, count: int) -> list[float]:
        """Return the other trials' published values at this report; empty if unreadable."""
        try:
            text = read_published(self._published, RUNGS_FILE)
            rungs = _values_by_report(text) if text is not None else {}
        except (OSError, RuntimeError) as error:
            self._warn(str(error))
            return []
        return [
            value for number, value in rungs.get(count, {}).items() if number != self._trial.trial
        ]

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._report(
                Warned(
                    message=f"the values of other trials cannot be read, so this trial continues: {why}"
                )
            )


def _values_by_report(text: str) -> dict[int, dict[int, float]]:
    """Return report -> trial -> value from the published text. Raise RuntimeError if invalid."""
    try:
        document = json.loads(text)
        if document["version"] != 1:
            raise RuntimeError(
                f"{RUNGS_FILE} is of version {document['version']!r}, this launcher knows version 1"
            )
        return {
            int(rung["at"]): {
                int(n): math.nan if v is None else float(v) for n, v in rung["values"].items()
            }
            for rung in document["rungs"]
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RuntimeError(
            f"{RUNGS_FILE} is not what it should be: {type(error).__name__}: {error}"
        ) from None
