"""The run that a command uses by default, and the numbers of runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.compare import compare
from cloudtrain.api.run import Run
from cloudtrain.runs.folder import RunFolder, new_run_id
from cloudtrain.runs.series import metric_points, series_of
from cloudtrain.runs.store import RunStore
from cloudtrain.sweeps.journal import SweepEnded, SweepFolder
from tests.support.function_trials import definition_of
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

# The numbers of a run as a table, CSV and JSON, and runs side by side.

NAN = float("nan")


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


def test_metrics_show_the_first_last_and_best_values(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5, 0.25, 0.3])
    assert call("metrics", "a-1").out.splitlines() == [
        "METRIC        FIRST       LAST  BEST",
        "val_loss      0.5    █▁▂  0.3   0.25 at step 2",
        "val_accuracy  0.5    ▁█▇  0.7   0.75 at step 2",
        "=x            1      ▁▁▁  1     1 to 1",
    ]


def test_metrics_as_csv_and_json(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5, NAN])
    assert call("metrics", "a-1", "--csv").out.splitlines() == [
        "time,step,epoch,val_loss,val_accuracy,'=x",
        "101.0,1,,0.5,0.5,1.0",
        "102.0,2,,nan,nan,1.0",
    ]
    points = json.loads(call("metrics", "a-1", "--json").out)["points"]
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


def test_compare_shows_what_differs_and_what_came_of_it(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5, 0.25], nodes=2)
    a_run(home, "b-2", 0.2, [0.5, 0.75], nodes=2, gpus=1)
    assert call("compare", "a-1", "b-2").out.splitlines() == [
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
    report = json.loads(call("compare", "a-1", "b-2", "--json").out)
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


# The run that a command uses by default, the words of other tools, and the text of --help.

Ended = Callable[..., None]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Writes the folder of a run that has ended, each later than the one before."""
    store = RunStore(tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    monkeypatch.chdir(tmp_path)

    def write(
        run_id: str,
        state: str | None = "succeeded",
        provider: str = "local",
        place: Path = tmp_path,
    ) -> None:
        plan = {
            "host": None,
            "provider": provider,
            "target": {"provider": provider, "contract": "plain"},
            "facts": {"folder": str(place)},
        }
        folder = store.create(run_id, {"plan.json": json.dumps(plan), "request.json": "{}"})
        moment = time.time() + len(store.ids())
        born = {
            "type": "submitting",
            "time": moment,
            "name": "digits",
            "provider": provider,
            "contract": "plain",
        }
        write_events(folder, {**born, "nodes": 1, "processes": 1})
        if state:
            write_events(folder, {"type": "ended", "time": moment + 1, "state": state})

    return write


@pytest.mark.parametrize("name", [(), ("last",)])
@pytest.mark.parametrize("words", ["stop", "status"])
def test_runs_of_other_folders_are_never_the_default(
    ended: Ended, tmp_path: Path, words: str, name: tuple[str, ...]
) -> None:
    ended("digits-aaaa")
    ended("other-bbbb", place=tmp_path / "other")
    assert call(words, *name).err.startswith("digits-aaaa, the last run from this folder\n")


@pytest.mark.parametrize("words", ["stop", "rerun"])
def test_several_running_submissions_are_listed_and_none_is_chosen(
    ended: Ended, words: str
) -> None:
    for name in ("digits-aaaa", "digits-bbbb"):
        ended(name, None, provider="aws")
    ended("digits-cccc")
    result = call(words)
    assert (result.code, result.out) == (2, "")
    assert "2 submissions from this folder are running: digits-bbbb, digits-aaaa" in result.err


def test_the_default_is_the_newest_sweep_and_not_its_newest_trial(
    ended: Ended, tmp_path: Path
) -> None:
    sweep = SweepFolder.create(
        tmp_path / "data",
        definition_of(),
        {"spec.yaml": "", "plan.json": json.dumps({"facts": {"submitted_from": str(tmp_path)}})},
    )
    sweep.append(SweepEnded(time=1.0, state="stopped", reason=""))
    ended(f"{sweep.sweep_id}-t000")
    result = call("stop")
    assert (result.code, result.err) == (
        0,
        f"{sweep.sweep_id}, the last sweep from this folder\n{sweep.sweep_id} had ended already\n",
    )
