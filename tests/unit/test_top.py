"""The screen of `top` at two widths, of recorded sessions, and the parts that a small one omits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli import main
from cloudtrain.cli.watch import screen
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from tests.support.samples import born
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


@pytest.mark.parametrize("height", [6, 12, 18, 24])
def test_what_has_no_room_is_left_out_and_the_log_stays(height: int) -> None:
    usages: list[Step] = [(158.0 + n, _usage(n, [*range(32 * n, 32 * n + 32)], 8)) for n in (0, 1)]
    steps = [*TRAINER, *usages]
    lines, _ = shown(steps, height=height)
    assert len(lines) <= height
    assert lines[0].startswith("digits-ab12  running")
    assert lines[-1] == "[rank 1] a line of another rank"


def test_a_limit_that_ends_the_run_early_is_on_the_screen() -> None:
    terms = Terms(usd_per_hour=36.0, seconds=30, limit="limits.max_cost")
    lines, _ = shown(SCRIPT, terms=terms)
    assert re.fullmatch(r"forecast: 44 s in all \(.*\), 0\.4\d USD \(.*\)", lines[3])
    assert lines[4].startswith(
        "warning: limits.max_cost will stop this run after 30 s, at about step "
    )


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
