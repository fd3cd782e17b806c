"""Several runs side by side: the settings that differ, and what came of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.series import Series, series_of
from cloudtrain.runs.state import RunState
from cloudtrain.spec.plain_secrets import hide_setting
from cloudtrain.spec.written_arguments import argument_values
from cloudtrain.submission.run import Run


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs side by side; every list has one item for each run, in their order."""

    runs: list[str]
    states: list[RunState]
    settings: Mapping[str, list[Any]]
    """Settings that are not the same in all runs, by their dotted names; None where a run does not
    set it.
    """
    series: list[Mapping[str, Series]]
    """The metrics of each run by name."""

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, in the order in which the runs report them."""
        return list(dict.fromkeys(name for each in self.series for name in each))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "runs": [
                {
                    **{
                        name: state.to_json()[name]
                        for name in ("run", "state", "created", "started", "ended", "billing")
                    },
                    "metrics": {name: _series_json(series) for name, series in of_run.items()},
                }
                for state, of_run in zip(self.states, self.series, strict=True)
            ],
            "settings": dict(self.settings),
        }


def compare(runs: Sequence[Run]) -> Compared:
    """Put runs side by side, as they were last seen."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: [each.get(name) for each in settings] for name in names}
    return Compared(
        runs=[run.id for run in runs],
        states=[run.cached_status() for run in runs],
        settings={
            name: each for name, each in values.items() if any(value != each[0] for value in each)
        },
        series=[series_of(run.metrics()) for run in runs],
    )


def settings_of(run: Run) -> dict[str, Any]:
    """What the run was asked to do: its spec, dotted, and where; nothing of one whose plan cannot
    be read.
    """
    record = RunRecord(run.folder)
    settings = dict[str, Any]()
    with suppress(StorageError):
        settings = {
            "provider": record.provider,
            **_flat(record.spec),
            "source": record.source_digest[:12] or None,
        }
    argv = settings.pop("args.argv", None)
    if isinstance(settings.pop("args.values", None), list) and isinstance(argv, list):
        values, rest = argument_values([str(word) for word in argv])
        settings |= {f"args.{name}": value for name, value in values.items()}
        settings["args"] = shlex.join(rest) or None
    named = {name.replace("args.values.", "args."): value for name, value in settings.items()}
    return {name: hide_setting(name, value) for name, value in named.items() if value is not None}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in values.items():
        settings |= (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping) and value
            else {f"{prefix}{key}": value}
        )
    return settings


def _series_json(series: Series) -> dict[str, Any]:
    best = series.best
    return {
        "first": series.first[0],
        "last": series.last[0],
        "best": best[0] if best else None,
        "best_step": best[1] if best else None,
        "min": series.low[0],
        "max": series.high[0],
    }
