"""Comparison of runs: settings that differ, and metrics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudtrain.api.run import Run
from cloudtrain.errors import StorageError
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.series import Series, series_of
from cloudtrain.runs.state import RunState
from cloudtrain.spec.fields import plain
from cloudtrain.spec.secrets_in_text import hide_setting
from cloudtrain.spec.yaml_document import parse_scalar

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of runs. Every list has one item per run, in their order."""

    runs: list[str]
    states: list[RunState]
    settings: Mapping[str, list[Any]]
    """Settings that differ, by dotted name; None if a run does not set one."""
    series: list[Mapping[str, Series]]
    """Metrics of each run by name."""

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics in the order of their reports."""
        return list(dict.fromkeys(name for metrics in self.series for name in metrics))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
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
    """Compare runs by their stored events, without asking a cloud."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for of_run in settings for name in of_run)
    values = {name: [of_run.get(name) for of_run in settings] for name in names}

    return Compared(
        runs=[run.id for run in runs],
        states=[run.cached_status() for run in runs],
        settings={
            name: of_runs
            for name, of_runs in values.items()
            if any(value != of_runs[0] for value in of_runs)
        },
        series=[series_of(run.metrics()) for run in runs],
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
        values, words = _argument_values([str(word) for word in argv])
        settings |= {f"args.{name}": value for name, value in values.items()}
        settings["args"] = shlex.join(words) or None

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


def _argument_values(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a command line with their values, and the words before them.

    Several words after an option are a list, none is `True`, as for `read_arguments`.
    """
    options: dict[str, list[str]] = {}
    before_options: list[str] = []
    current = before_options

    for word in argv:
        match = _OPTION.fullmatch(word)
        if match is None:
            current.append(word)
            continue

        current = options[match["name"]] = []
        if match["value"] is not None:
            current.append(match["value"])
            current = before_options

    return {name: _value_of(words) for name, words in options.items()}, before_options


def _value_of(words: Sequence[str]) -> Any:
    values = [plain(parse_scalar(word)) for word in words]
    if not values:
        return True
    if len(values) != 1:
        return values

    return values[0]
