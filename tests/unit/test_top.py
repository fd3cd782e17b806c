"""The screen of `top` at two widths, of recorded sessions, and the parts that a small one omits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli import main
from cloudtrain.cli.top_view import MAX_CURVE_HEIGHT, Price, screen
from cloudtrain.cli.watch import _price
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.terms import Terms
from cloudtrain.submission.run import Run
from tests.support.samples import BORN, born, write_events
from tests.support.screens import START, Clock, Step, check, updates
from tests.support.sessions import SCRIPT, TRAINER


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
    steps: list[Step], *, width: int = 80, height: int = 30, price: Price | None = None
) -> tuple[list[str], RunState]:
    clock = Clock()
    lines = list[LogLine]()
    for update in updates("digits-ab12", steps, clock):
        lines += [line for line in update.lines if not line.kind]
    screen_lines = screen(
        update.state, lines, price or Price(), now=clock() + 2, width=width, height=height
    )
    return screen_lines, update.state


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["trainer", "script"])
def test_the_screen_is_as_it_was_recorded(name: str, width: int) -> None:
    if name == "trainer":
        usage: list[Step] = [
            (158.0 + node, _usage(node, [2 * node, 2 * node + 1], 2)) for node in range(2)
        ]
        lines, _ = shown([*TRAINER, *usage], width=width, price=Price(usd_per_hour=12.5))
    else:
        lines, _ = shown([*SCRIPT, (11.0, _usage(0, [0, 1], 0))], width=width)
    check(f"top-{name}-{width}", "\n".join(lines))
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("height", [6, 12, 18, 24])
def test_what_has_no_room_is_left_out_and_the_log_stays(height: int) -> None:
    usages: list[Step] = [(158.0 + n, _usage(n, [*range(32 * n, 32 * n + 32)], 8)) for n in (0, 1)]
    steps = [*TRAINER, *usages]
    lines, _ = shown(steps, height=height)
    assert len(lines) <= height
    assert lines[0].startswith("digits-ab12  running")
    assert lines[-1] == "[rank 1] a line of another rank"


def test_a_measurement_that_is_old_says_so() -> None:
    lines, _ = shown([*SCRIPT, (11.0, _usage(0, [0], 0)), (200.0, "[rank 0] late")], width=120)
    assert [line for line in lines if line.endswith("measured 3 min 11 s ago")]


def test_the_curve_of_a_metric_with_a_long_name_has_room() -> None:
    long = {"type": "metrics", "step": 1, "values": {"x" * 300: 1.0}}
    lines, _ = shown([*SCRIPT, (12.0, long), (13.0, {**long, "values": {"x" * 300: 2.0}})])
    assert any(line.startswith("xxx") and line.endswith("█ 2") for line in lines), lines


def curve_lines(values: list[float], height: int) -> list[str]:
    """The lines of the screen that draw a metric with these values."""
    reports: list[Step] = [
        (float(at), {"type": "metrics", "rank": 0, "step": at, "values": {"perplexity": value}})
        for at, value in enumerate(values, 12)
    ]
    steps = [
        step for step in SCRIPT if not isinstance(step[1], dict) or step[1].get("type") != "metrics"
    ]
    lines, _ = shown([*steps, *reports], height=height)
    labelled = next(at for at, line in enumerate(lines) if line.startswith("perplexity"))
    first = next(
        at
        for at, line in enumerate(lines)
        if at <= labelled and "█" in line and not line.startswith("loss")
    )
    return lines[first : labelled + 1]


def test_a_loss_that_falls_by_magnitudes_is_drawn_on_a_log_scale() -> None:
    (line,) = curve_lines([1.0, 0.1, 0.01, 0.001], height=11)
    assert line.endswith("█▆▃▁ 0.001  log scale")
    (line,) = curve_lines([4.0, 3.0, 2.0, 1.0], height=11)
    assert line.endswith("█▆▃▁ 1")


def test_a_curve_takes_the_height_that_the_screen_has() -> None:
    assert len(curve_lines([4.0, 3.0, 2.0, 1.0], height=11)) == 1
    assert len(curve_lines([4.0, 3.0, 2.0, 1.0], height=40)) == MAX_CURVE_HEIGHT


def test_a_limit_that_ends_the_run_early_is_on_the_screen() -> None:
    terms = Terms(usd_per_hour=36.0, seconds=30, limit="limits.max_cost")
    lines, _ = shown(SCRIPT, price=Price(usd_per_hour=36.0, terms=terms))
    assert re.fullmatch(r"forecast: 44 s in all \(.*\), 0\.4\d USD \(.*\)", lines[3])
    assert lines[4].startswith(
        "warning: limits.max_cost will stop this run after 30 s, at about step "
    )


def test_what_it_has_cost_so_far_leaves_out_the_wait_for_other_machines() -> None:
    went = {
        "type": "phase",
        "time": START + 3600,
        "since": START + 3600,
        "phase": "waiting for capacity",
    }
    back = {
        "type": "phase",
        "time": START + 7200,
        "since": START + 7200,
        "phase": "training",
        "running": True,
    }
    for steps in ([(7000.0, went)], [(7000.0, went), (7200.0, back)]):
        lines, state = shown([*SCRIPT, *steps], price=Price(usd_per_hour=10.0))
        assert state.started == pytest.approx(START, abs=60)
        assert "  about 10.0" in lines[1], lines[1]


def test_a_run_that_has_ended_shows_what_it_cost() -> None:
    ended = {
        "type": "ended",
        "state": "succeeded",
        "billing": {"billable_seconds": 3600, "usd": 2.5},
    }
    lines, _ = shown([*SCRIPT, (3600.0, ended)])
    assert lines[1] == "59 min 59 s  1 h billed, 2.50 USD at list price"


@pytest.mark.parametrize(
    ("plan", "usd"),
    [
        ('{"target": {"quote": {"price": {"usd": 2.5}, "nodes": 4}}}', 10.0),
        ('{"target": {"quote": {"price": null, "nodes": 4}}}', None),
        ('{"target": {"quote": null}}', None),
        ('{"target": 3}', None),
        ("{", None),
    ],
)
def test_the_price_is_that_of_the_plan(tmp_path: Path, plan: str, usd: float | None) -> None:
    folder = RunStore(tmp_path).create("a-1", {"plan.json": plan})
    write_events(folder, BORN)
    assert _price(Run(folder)).usd_per_hour == usd


def test_without_a_terminal_the_screen_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path))
    born(RunStore(tmp_path), "a-1", {"type": "ended", "time": START, "state": "succeeded"})
    with pytest.raises(SystemExit) as ended:
        main(["top", "a-1"])
    assert (ended.value.code, capsys.readouterr().out.splitlines()[0]) == (
        0,
        "a-1  succeeded  2 x 4 ranks  local",
    )
