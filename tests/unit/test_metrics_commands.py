"""The numbers of a run as a table, CSV and JSON, and runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli import main
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.ids import new_run_id
from cloudtrain.runs.series import metric_points, series_of
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.compare import compare
from cloudtrain.submission.run import Run
from tests.support.samples import BORN, write_events

NAN = float("nan")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("time.time", lambda: 1000.0)
    return RunStore(tmp_path / "data")


def a_run(
    store: RunStore, run_id: str, lr: float, losses: list[float], **resources: Any
) -> RunFolder:
    argv = {"argv": ["--lr", str(lr)], "values": {"lr": lr}}
    plan = {"provider": "local", "spec": {"name": "digits", "args": argv, "resources": resources}}
    folder = store.create(run_id, {"plan.json": json.dumps(plan)})
    write_events(folder, {**BORN, "time": 100.0})
    for step, loss in enumerate(losses, 1):
        values = {"val_loss": loss, "val_accuracy": 1 - loss, "=x": 1.0}
        write_events(
            folder,
            {
                "type": "metrics",
                "time": 100.0 + step,
                "rank": 0,
                "step": step,
                "seq": step,
                "values": values,
            },
        )
    write_events(folder, {"type": "node_started", "time": 100.0, "node": 0})
    write_events(folder, {"type": "ended", "time": 160.0, "state": "succeeded"})
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_metrics_show_the_first_last_and_best_values(
    home: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(home, "a-1", 0.1, [0.5, 0.25, 0.3])
    assert run("metrics", "a-1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "METRIC        FIRST       LAST  BEST",
        "val_loss      0.5    █▁▂  0.3   0.25 at step 2",
        "val_accuracy  0.5    ▁█▇  0.7   0.75 at step 2",
        "=x            1      ▁▁▁  1     1 to 1",
    ]


def test_metrics_as_csv_and_json(home: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(home, "a-1", 0.1, [0.5, NAN])
    run("metrics", "a-1", "--csv")
    assert capsys.readouterr().out.splitlines() == [
        "time,step,epoch,val_loss,val_accuracy,'=x",
        "101.0,1,,0.5,0.5,1.0",
        "102.0,2,,nan,nan,1.0",
    ]
    run("metrics", "a-1", "--json")
    points = json.loads(capsys.readouterr().out)["points"]
    assert points[1] == {
        "time": 102.0,
        "step": 2,
        "epoch": None,
        "values": {"val_loss": None, "val_accuracy": None, "=x": 1.0},
    }


def test_nan_is_never_the_best_value(home: RunStore) -> None:
    for losses in ([NAN, 0.5, 0.25], [0.5, NAN, 0.25], [0.5, 0.25, NAN]):
        points = metric_points(a_run(home, new_run_id(home.data_dir, "n"), 0.1, losses).events())
        assert series_of(points)["val_loss"].best == (0.25, losses.index(0.25) + 1)


def test_compare_shows_what_differs_and_what_came_of_it(
    home: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(home, "a-1", 0.1, [0.5, 0.25], nodes=2)
    a_run(home, "b-2", 0.2, [0.5, 0.75], nodes=2, gpus=1)
    assert run("compare", "a-1", "b-2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "                a-1             b-2",
        "state           succeeded       succeeded",
        "submitted       15 min ago      15 min ago",
        "took            1 min           1 min",
        "args.lr         0.1             0.2",
        "resources.gpus                  1",
        "val_loss        0.25            0.75",
        "  best          0.25 at step 2  0.5 at step 1",
        "val_accuracy    0.75            0.25",
        "  best          0.75 at step 2  0.5 at step 1",
        "=x              1               1",
        "  best          1 to 1          1 to 1",
    ]
    run("compare", "a-1", "b-2", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["settings"] == {"args.lr": [0.1, 0.2], "resources.gpus": [None, 1]}
    assert [run["metrics"]["val_loss"]["best"] for run in report["runs"]] == [0.25, 0.5]


def test_arguments_without_names_are_one_setting(home: RunStore) -> None:
    folders = [a_run(home, name, 0.1, [0.5]) for name in ("a-1", "b-2")]
    argv = ["--data set", "3"]
    plan = {"provider": "local", "spec": {"args": {"argv": argv, "values": argv}}}
    (folders[1].path / "plan.json").write_text(json.dumps(plan))
    settings = compare([Run(folder) for folder in folders]).settings
    assert settings["args"] == [None, "'--data set' 3"]
    assert "args.values" not in settings
