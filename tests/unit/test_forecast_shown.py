"""Places that show a forecast: status, following in a pipe, the page of a run; and one warning
about the limit.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cloudtrain.cli import cli
from cloudtrain.cli.follow import View
from cloudtrain.runs.record import Terms, terms_of
from cloudtrain.runs.store import RunStore
from cloudtrain.submission import monitor
from cloudtrain.submission.run import Run
from tests.support.events import events_of
from tests.support.samples import BORN, write_events
from tests.support.screens import Screen

PLAN: dict[str, Any] = {
    "provider": "aws",
    "spec": {"name": "digits", "limits": {"max_cost": 1.0}},
    "target": {
        "quote": {
            "price": {"usd": 18.0, "as_of": "2026-01-01", "source": "a table"},
            "nodes": 2,
            "max_seconds": 300,
            "cap": "limits.max_cost",
            "overhead_seconds": 120,
            "kept_seconds": 0,
        }
    },
    "host": None,
}

PRICED = Terms(usd_per_hour=36.0, seconds=300, overhead_seconds=120, limit="limits.max_cost")
REHEARSED = replace(PRICED, is_billed=False)


@pytest.fixture(autouse=True)
def quiet_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that has nothing new to say."""
    silent = SimpleNamespace(
        observe=lambda *_: [],
        poll_seconds=lambda *_: 0.0,
        artifacts=lambda *_: {},
        backfill_logs=lambda *_: [],
    )
    monkeypatch.setattr(monitor, "get_provider", lambda _: silent)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("cloudtrain.cli.output._program", lambda: "cloudtrain")


def run_of(tmp_path: Path, *, trained: float = 100.0, plan: dict[str, Any] | None = None) -> Run:
    """Write a run that has trained for `trained` seconds until now, one step per second, of 1,000."""
    folder = RunStore(tmp_path).create("digits-ab12", {"plan.json": json.dumps(plan or PLAN)})
    first = time.time() - trained
    steps = [
        {"type": "progress", "time": first + second, "rank": 0, "step": second + 1, "steps": 1000}
        for second in range(int(trained) + 1)
    ]
    submitted = {"type": "submitted", "time": first - 20, "ref": {}}
    started = {"type": "node_started", "time": first - 10, "node": 0}
    write_events(
        folder, {**BORN, "provider": "aws", "time": first - 20}, submitted, started, *steps
    )
    return Run(folder)


def warnings_of(run: Run) -> list[str]:
    return [event["message"] for event in events_of(run.folder) if event["type"] == "limit_too_low"]


def test_a_limit_that_cannot_be_met_is_written_down_once_however_many_look(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.status()
    run.status()
    status = Run(run.folder).status()
    [message] = warnings_of(run)
    assert message.startswith(
        "limits.max_cost will stop this run after 5 min, at about step 290 of 1000: it needs 16"
        " min "
    )
    raised = re.search(
        rf"cloudtrain stop {run.id}, then cloudtrain rerun {run.id} --set 'limits.max_cost=(\d+)"
        r" USD'",
        message,
    )
    assert raised
    assert int(raised[1]) >= 11, "what the run needs, and two minutes to stop"
    assert status.warnings == [message]


def test_status_shows_time_and_cost_with_their_interval(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    shown = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "status", run.id]).output
    [line] = [line for line in shown.splitlines() if line.startswith("  forecast ")]
    assert "in all (" in line
    assert " USD (" in line
    assert "  warning     limits.max_cost will stop this run" in shown
    document = json.loads(
        CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "status", run.id, "--json"]).stdout
    )
    forecast = document["forecast"]
    assert (
        forecast["total_seconds"]["low"]
        < forecast["total_seconds"]["likely"]
        < forecast["total_seconds"]["high"]
    )
    assert forecast["usd"]["likely"] == pytest.approx(
        forecast["total_seconds"]["likely"] / 100, abs=0.01
    )
    assert (forecast["ends_early"]["limit"], forecast["ends_early"]["certainty"]) == (
        "limits.max_cost",
        "sure",
    )


def test_who_follows_in_a_pipe_reads_the_forecast_once_and_the_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path)
    screen = Screen(terminal=False)
    monkeypatch.setattr(sys, "stderr", screen)
    view = View(run)
    updates = run.watch()
    for _ in range(3):
        view.show(next(updates))
    lines = screen.text().splitlines()
    assert sum("forecast: 16 min " in line for line in lines) == 1
    assert sum("warning: limits.max_cost will stop this run" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("plan", "terms"),
    [
        (PLAN, PRICED),
        ({**PLAN, "host": {"provider": "local"}}, REHEARSED),
        (
            {"spec": {"limits": {"max_runtime": 60}}, "target": {}},
            Terms(seconds=60, limit="limits.max_runtime"),
        ),
        (
            {"target": {"quote": {"price": None, "nodes": 2, "max_seconds": 60, "cap": ""}}},
            Terms(seconds=60),
        ),
        ({"target": 3, "spec": []}, Terms(limit="limits.max_runtime")),
        ({"adopted": True}, Terms(limit="limits.max_runtime")),
        ({**PLAN, "facts": {"trial": {"rungs": [1, 3]}}}, replace(PRICED, seconds=0)),
    ],
    ids=[
        "priced",
        "a rehearsal is not billed",
        "on this machine",
        "unknown price",
        "damaged",
        "of another machine",
        "a trial",
    ],
)
def test_the_terms_of_a_run_are_those_of_its_plan(
    tmp_path: Path, plan: dict[str, Any], terms: Terms
) -> None:
    assert terms_of(RunStore(tmp_path).create("a-1", {"plan.json": json.dumps(plan)})) == terms
