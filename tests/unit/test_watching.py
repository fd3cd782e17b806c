"""Following a run: the text of the screen at two widths, on a terminal and in a pipe, of recorded
sessions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.cli.follow import View
from cloudtrain.cli.progress import rate_text
from cloudtrain.cli.report import report
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogLine, log_line
from cloudtrain_launcher.events import RESTART_ELSEWHERE
from tests.support.events import fold_json
from tests.support.samples import BORN
from tests.support.screens import Clock, Screen, Step, check, updates
from tests.support.sessions import SESSIONS, TRAINER


@pytest.fixture(autouse=True)
def no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("cloudtrain.cli.output._program", lambda: "cloudtrain")


def play(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    steps: list[Step],
    *,
    columns: int = 80,
    terminal: bool = True,
    **how: Any,
) -> tuple[Screen, list[str]]:
    """The screen after a session, and the progress lines that were drawn on the way."""
    screen = Screen(terminal=terminal)
    clock = Clock()
    drawn = []
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    run: Any = SimpleNamespace(id=f"{name}-ab12", artifacts=dict, folder=RunFolder(Path("nowhere")))
    view = View(run, clock=clock, **how)
    for update in updates(run.id, steps, clock):
        view.show(update)
        last = screen.text().split("\n")[-1]
        if last and last not in drawn:
            drawn.append(last)
    if update.state.has_ended:
        view.finish()
        monkeypatch.setattr("time.time", clock)
        report(run, update.state)
    return screen, drawn


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_looks_as_it_was_recorded(
    monkeypatch: pytest.MonkeyPatch, name: str, terminal: bool, columns: int
) -> None:
    screen, drawn = play(monkeypatch, name, SESSIONS[name], columns=columns, terminal=terminal)
    progress = ["", "the progress line, as it changed:", *drawn] if terminal else []
    check(
        f"{name}-{'terminal' if terminal else 'pipe'}-{columns}",
        "\n".join([screen.text().rstrip("\n"), *progress]),
    )
    assert all(len(text) < columns for text in drawn)


def test_a_flood_of_metrics_does_not_flood_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    flood: list[Step] = [
        (30 + step / 100, {"type": "metrics", "rank": 0, "step": step, "values": {"x": step}})
        for step in range(1000)
    ]
    screen, _ = play(monkeypatch, "script", [*SESSIONS["script"], *flood], terminal=False)
    shown = [
        text for text in screen.text().split("\n") if text.startswith("  step ") and " x " in text
    ]
    assert (shown[0], 25 <= len(shown) <= 35) == ("  step 0  x 0", True)


def test_a_restart_is_told_once_by_the_node_that_knows_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restarts: list[Step] = [
        (200.0, {"type": "restarted", "node": 0, "attempt": 1, "why": RESTART_ELSEWHERE}),
        (
            200.1,
            {"type": "restarted", "node": 1, "attempt": 1, "why": "rank 3 was killed by SIGKILL"},
        ),
    ]
    screen, _ = play(monkeypatch, "trainer", [*TRAINER, *restarts], terminal=False)
    assert [line for line in screen.text().split("\n") if "restart 1" in line] == [
        "  restart 1: rank 3 was killed by SIGKILL"
    ]


def test_a_program_cannot_print_a_line_of_metrics() -> None:
    assert log_line(1.0, 0, "[rank 0] [rank 0 metrics] loss 0") == LogLine(
        1.0, 0, "rank 0", "[rank 0 metrics] loss 0"
    )


def test_the_speed_is_that_of_the_latest_minute_of_training_alone() -> None:
    def progress(time: float, step: int) -> dict[str, Any]:
        return {"type": "progress", "time": time, "step": step}

    state = fold_json("x", [BORN, *(progress(5.0 * step, step) for step in range(1, 14))])
    pause = {"type": "activity", "time": 65.0, "rank": 0, "activity": "evaluating"}
    fold_json("x", [pause, {**pause, "time": 165.0, "activity": ""}, progress(170.0, 14)], state)
    assert rate_text(state) == "5 s/step"
    fold_json("x", [progress(170.0 + 0.5 * step, 14 + step) for step in range(1, 121)], state)
    assert rate_text(state) == "2 steps/s"
