"""Following a run, `top`, and places that show a forecast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cloudtrain.api import monitor
from cloudtrain.api.run import Run
from cloudtrain.cli import cli
from cloudtrain.cli.follow import View, rate_text
from cloudtrain.cli.run_end import report
from cloudtrain.cli.top import screen
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogBlock, LogLine, log_line
from cloudtrain.runs.record import Terms, terms_of
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.events import RESTART_ELSEWHERE
from tests.support.in_process import call
from tests.support.samples import BORN, born, fold_json, write_events
from tests.support.sessions import (
    SCRIPT,
    SESSIONS,
    START,
    TRAINER,
    Clock,
    Screen,
    Step,
    check,
    updates,
)

# Following a run and `top`: the text of recorded sessions on a screen and in a pipe.

# Following a run: the text of the screen at two widths, on a terminal and in a pipe, of recorded
# sessions.


@pytest.fixture(autouse=True)
def no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "argv", ["cloudtrain"])


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
    run: Any = SimpleNamespace(
        id=f"{name}-ab12",
        artifacts=dict,
        left_behind=list,
        folder=RunFolder(Path("nowhere/runs/x")),
    )
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


def test_lines_that_came_at_once_are_shown_or_counted_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen(terminal=False)
    monkeypatch.setattr(sys, "stderr", screen)
    run: Any = SimpleNamespace(id="x")
    view = View(run)
    blocks = [LogBlock(START, 0, f"rank {rank}", "a\nb\nc") for rank in (0, 1)]
    view.show(monitor.Update(RunState(run_id="x"), [], blocks))
    view.finish()
    assert screen.text() == "  a\n  b\n  c\n  (3 more lines from other ranks: cloudtrain logs x)\n"


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


@pytest.mark.parametrize(
    ("tries_all", "then"),
    [
        (True, "then choose in cloudtrain gpus"),
        (False, "then cloudtrain rerun trainer-ab12 --set 'resources.instance.azure=[B, C]'"),
    ],
)
def test_a_long_wait_for_machines_suggests_others_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tries_all: bool, then: str
) -> None:
    monkeypatch.chdir(tmp_path)
    target = {"provider": "azure", "facts": {"instances": ["A", "B", "C"]}}
    Path("nowhere/runs/x").mkdir(parents=True)
    plan = {"target": {**target, "tries_all_instances": tries_all}}
    Path("nowhere/runs/x/plan.json").write_text(json.dumps(plan))
    waits: list[Step] = [
        (10.0 + seconds, {"type": "phase", "phase": "waiting for capacity", "since": START + 10})
        for seconds in (0, 590, 610, 1300)
    ]
    reason = "AllocationFailed: no capacity in this region"
    end: Step = (1400.0, {"type": "ended", "state": "failed", "reason": reason})
    screen, _ = play(monkeypatch, "trainer", [*TRAINER[:1], *waits, end], terminal=False)
    lines = screen.text().split("\n")
    assert [line for line in lines if "no machine for" in line] == [
        "  no machine for 10 min 10 s; nothing is billed while it waits"
    ]
    assert sum(f"cloudtrain stop trainer-ab12, {then}" in line for line in lines) == 1
    changed = any(line.startswith("  next ") and "after that change" in line for line in lines)
    assert changed is tries_all


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


# The screen of `top` at two widths, of recorded sessions, and the parts that a small one omits.


def _usage(node: int, ranks: list[int], gpus: int) -> dict[str, Any]:
    names = [str(gpu) for gpu in range(gpus)]
    by_gpu = {
        "gpu_percent": {name: 97 - int(name) for name in names},
        "gpu_memory_gb": dict.fromkeys(names, 30.5),
        "gpu_memory_total_gb": dict.fromkeys(names, 80.0),
        "gpu_power_w": dict.fromkeys(names, 412.3),
        "gpu_temperature_c": dict.fromkeys(names, 61),
    }
    return {
        "type": "usage",
        "node": node,
        "cores": 8,
        "cpu_percent": 230.5,
        "memory_gb": 3.1,
        "memory_total_gb": 7.8,
        "rank_cpu_percent": {str(rank): 99.5 for rank in ranks},
        "rank_memory_gb": {str(rank): 1.25 for rank in ranks},
        **(by_gpu if gpus else {}),
    }


def shown(
    steps: list[Step], *, width: int = 80, height: int = 30, terms: Terms | None = None
) -> tuple[list[str], RunState]:
    clock = Clock()
    lines = list[LogLine]()
    for update in updates("digits-ab12", steps, clock):
        lines += [line for line in update.lines if not line.kind]
    screen_lines = screen(
        update.state, lines, terms or Terms(), now=clock() + 2, width=width, height=height
    )
    return screen_lines, update.state


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["trainer", "script"])
def test_the_screen_is_as_it_was_recorded(name: str, width: int) -> None:
    if name == "trainer":
        usage: list[Step] = [
            (158.0 + node, _usage(node, [2 * node, 2 * node + 1], 2)) for node in range(2)
        ]
        lines, _ = shown([*TRAINER, *usage], width=width, terms=Terms(usd_per_hour=12.5))
    else:
        lines, _ = shown([*SCRIPT, (11.0, _usage(0, [0, 1], 0))], width=width)
    check(f"top-{name}-{width}", "\n".join(lines))
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("losses", "drawn"),
    [
        ([1.0, 0.1, 0.01, 0.001], "█▆▃▁ 0.001 log"),
        ([1.0, 0.5, 0.0], "█▅▁ 0"),
        ([0.5, 1.0], "▁█ 1"),
    ],
    ids=["falling", "without a logarithm", "rising"],
)
def test_a_falling_loss_is_drawn_on_a_log_scale(losses: list[float], drawn: str) -> None:
    steps: list[Step] = [
        (20.0 + step, {"type": "metrics", "rank": 0, "step": step, "values": {"val_loss": loss}})
        for step, loss in enumerate(losses)
    ]
    lines, _ = shown([SCRIPT[0], *steps])
    assert any(line.startswith("val_loss") and line.endswith(drawn) for line in lines), lines


@pytest.mark.parametrize("height", [6, 12, 18, 24])
def test_what_has_no_room_is_left_out_and_the_log_stays(height: int) -> None:
    usages: list[Step] = [(158.0 + n, _usage(n, [*range(32 * n, 32 * n + 32)], 8)) for n in (0, 1)]
    steps = [*TRAINER, *usages]
    lines, _ = shown(steps, height=height)
    assert len(lines) <= height
    assert lines[0].startswith("digits-ab12  running")
    assert lines[-1] == "[rank 1] a line of another rank"


def test_without_a_terminal_the_screen_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path))
    born(RunStore(tmp_path), "a-1", {"type": "ended", "time": START, "state": "succeeded"})
    assert call("top", "a-1").out.startswith("a-1  succeeded  2 x 4 ranks  local\n")


# Remaining time and cost, as status shows them.

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
            "kept_seconds": 60,
        }
    },
    "host": None,
}

PRICED = Terms(usd_per_hour=36.0, kept_seconds=60, limit="limits.max_cost")
REHEARSED = Terms(usd_per_hour=36.0, is_billed=False, limit="limits.max_cost")


@pytest.fixture(autouse=True)
def quiet_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that has nothing new to say."""
    silent = SimpleNamespace(
        observe=lambda *_: [],
        poll_seconds=lambda *_: 0.0,
        artifacts=lambda *_: {},
        left_behind=lambda *_: [],
        backfill_logs=lambda *_: [],
    )
    monkeypatch.setattr(monitor, "get_provider", lambda _: silent)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has trained for 100 seconds, one step per second, of 1,000; the clock stands
    still.
    """
    monkeypatch.setattr("time.time", lambda: START + 100)
    steps = [
        {"type": "progress", "time": START + second, "rank": 0, "step": second + 1, "steps": 1000}
        for second in range(101)
    ]
    folder = RunStore(tmp_path).create("digits-ab12", {"plan.json": json.dumps(PLAN)})
    write_events(
        folder,
        {**BORN, "provider": "aws", "time": START - 20},
        {"type": "submitted", "time": START - 20, "ref": {}},
        {"type": "node_started", "time": START - 10, "node": 0},
        *steps,
    )
    return Run(folder)


def test_status_notes_what_a_run_that_succeeded_has_lost(tmp_path: Path, run: Run) -> None:
    lost = "log lines lost: 7 (the disk was full)"
    write_events(
        run.folder, {"type": "ended", "time": START + 99, "state": "succeeded", "reason": lost}
    )
    shown = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "status", run.id]).output
    assert f"  note        {lost}\n" in shown
    assert "because" not in shown


def test_status_shows_the_time_left_and_the_cost_so_far_and_at_the_end(
    tmp_path: Path, run: Run
) -> None:
    shown = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "status", run.id]).output
    assert "  step        101/1000, 14 min 59 s left\n" in shown
    assert "  cost        about 1.10 USD so far, 10.69 USD at the end, at list price\n" in shown, (
        "110 s are over, 899 to come, and 60 for kept machines"
    )
    document = json.loads(
        CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "status", run.id, "--json"]).stdout
    )
    assert document["forecast"] == {
        "left_seconds": {"likely": 899.0},
        "usd_so_far": 1.1,
        "usd": {"likely": 10.69},
    }


@pytest.mark.parametrize(
    ("plan", "terms"),
    [
        (PLAN, PRICED),
        ({**PLAN, "host": {"provider": "local"}}, REHEARSED),
        (
            {"spec": {"limits": {"max_runtime": 60}}, "target": {}},
            Terms(limit="limits.max_runtime"),
        ),
        (
            {"target": {"quote": {"price": None, "nodes": 2, "max_seconds": 60, "cap": ""}}},
            Terms(),
        ),
        ({"target": 3, "spec": []}, Terms(limit="limits.max_runtime")),
        ({"adopted": True}, Terms(limit="limits.max_runtime")),
    ],
    ids=[
        "priced",
        "a rehearsal is not billed",
        "on this machine",
        "unknown price",
        "damaged",
        "of another machine",
    ],
)
def test_the_terms_of_a_run_are_those_of_its_plan(
    tmp_path: Path, plan: dict[str, Any], terms: Terms
) -> None:
    assert terms_of(RunStore(tmp_path).create("a-1", {"plan.json": json.dumps(plan)})) == terms
