"""`cloudtrain diagnose` of a run that is slow, and the line at the end of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from cloudtrain.cli import main
from cloudtrain.cli.report import report
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.run import Run
from tests.support.samples import BORN, write_events


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    return RunStore(tmp_path / "data")


def slow_run(store: RunStore, *, intervals: int = 20, data: float = 6.0, **spec: Any) -> RunFolder:
    """Write a run of two ranks that wait for data these seconds in every ten."""
    plan = {"provider": "local", "spec": {"name": "digits", **spec}}
    folder = store.create("a-1", {"plan.json": json.dumps(plan)})
    write_events(
        folder,
        {**BORN, "nodes": 1, "processes": 2},
        {"type": "node_started", "time": 100.0, "node": 0},
    )
    for number in range(intervals):
        times = {
            "type": "step_times",
            "time": 110.0 + 10 * number,
            "step": 40 * number,
            "steps": 40,
            "wall": 10.0,
        }
        phases = {
            "data": data,
            "compute": 9.5 - data,
            "communication": 0.5,
            "optimizer": 0.0,
            "other": 0.0,
        }
        write_events(
            folder, *({**times, **phases, "rank": rank, "seq": number} for rank in range(2))
        )
    write_events(folder, {"type": "ended", "time": 400.0, "state": "succeeded"})
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_diagnose_names_the_cause_its_gain_and_the_setting(
    home: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_run(home)
    assert run("diagnose", "a-1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a-1 succeeded in 5 min: nothing failed",
        "  speed       training waits for its data 60% of the time",
        "  gain        without it up to 2.5x as fast; confidence 95%",
        "  time        data 60%, compute 35%, communication 5%",
        (
            "  change      --workers N (more loader processes per rank), or data that is cheaper to"
            " read and decode"
        ),
        "  next        cloudtrain fetch a-1",
    ]


def test_diagnose_as_json_has_the_shares(
    home: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_run(home, entrypoint="train.py")
    assert run("diagnose", "a-1", "--json") == 0
    slowness = json.loads(capsys.readouterr().out)["slowness"]
    assert (slowness["cause"], slowness["share"], slowness["gain"]) == ("input", 0.6, 2.5)
    assert slowness["shares"]["compute"] == 0.35
    assert "num_workers" in slowness["change"], "a script of one's own has no --workers"


@pytest.mark.parametrize(
    ("intervals", "data", "is_told"),
    [(20, 6.0, True), (5, 6.0, False), (20, 0.5, False), (1, 6.0, False)],
)
def test_the_report_at_the_end_says_so_in_one_line(
    home: RunStore, capsys: pytest.CaptureFixture[str], intervals: int, data: float, is_told: bool
) -> None:
    """Not of a run that was short or healthy."""
    folder = slow_run(home, intervals=intervals, data=data)
    run = Run(folder)
    with click.Context(click.Command("attach")):
        report(run, run.last_known())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  slow ")]
    hints = ["  slow        training waits for its data 60% of the time; cloudtrain diagnose a-1"]
    assert lines == (hints if is_told else [])
