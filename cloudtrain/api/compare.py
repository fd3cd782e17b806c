"""Comparison of runs: settings that differ, and metrics."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudtrain.api.run import Run
from cloudtrain.errors import StorageError
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.series import Series
from cloudtrain.runs.state import RunState
from cloudtrain.spec.options_of_words import options_of

_STATE_FIELDS = ("run", "state", "created", "started", "ended", "billing")


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of runs. Every list has one item per run, in their order."""

    runs: list[str]
    states: list[RunState]
    settings: Mapping[str, list[Any]]
    """Settings that differ, by dotted name; None if a run does not set one."""

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics in the order of their reports."""
        names: dict[str, None] = {}
        for state in self.states:
            names |= dict.fromkeys(state.series)

        return list(names)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        runs = []
        for state in self.states:
            document = state.to_json()
            run = {name: document[name] for name in _STATE_FIELDS}
            run["metrics"] = {name: _series_json(series) for name, series in state.series.items()}
            runs.append(run)

        return {"runs": runs, "settings": dict(self.settings)}


def compare(runs: Sequence[Run]) -> Compared:
    """Compare runs by their stored events, without asking a cloud."""
    all_settings = [settings_of(run) for run in runs]
    names: dict[str, None] = {}
    for settings in all_settings:
        names |= dict.fromkeys(settings)

    differing = {}
    for name in names:
        values = [settings.get(name) for settings in all_settings]
        if any(value != values[0] for value in values):
            differing[name] = values

    return Compared(
        runs=[run.id for run in runs],
        states=[run.cached_status() for run in runs],
        settings=differing,
    )


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run by dotted name; empty if its plan cannot be read."""
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
        values, words = options_of([str(word) for word in argv])
        settings |= {f"args.{name}": value for name, value in values.items()}
        settings["args"] = shlex.join(words) or None

    named = {name.replace("args.values.", "args."): value for name, value in settings.items()}
    return {name: value for name, value in named.items() if value is not None}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            settings |= _flat(value, f"{prefix}{key}.")
        else:
            settings[f"{prefix}{key}"] = value

    return settings


def _series_json(series: Series) -> dict[str, Any]:
    document: dict[str, Any] = {
        "first": series.first[0],
        "last": series.last[0],
        "best": None,
        "best_step": None,
        "min": series.low[0],
        "max": series.high[0],
    }
    if series.best:
        value, step = series.best
        document["best"] = value
        document["best_step"] = step

    return document
