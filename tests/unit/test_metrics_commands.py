"""The run that a command uses by default, and the numbers of runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api import jobs as api
from cloudtrain.api.compare import compare
from cloudtrain.api.run import Run
from cloudtrain.api.submit import submitting
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder, new_run_id
from cloudtrain.runs.index import FIELDS
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.submissions import Submission
from cloudtrain.sweeps.journal import SweepEnded, SweepFolder
from tests.support.function_trials import definition_of
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

# The numbers of a run as a table, CSV and JSON, and runs side by side.

NAN = float("nan")


def a_run(
    store: RunStore,
    run_id: str,
    lr: float,
    losses: list[float],
    *,
    job: str = "digits",
    place: str | Path = "",
    created: float = 100.0,
    **resources: Any,
) -> RunFolder:
    argv = {"argv": ["--lr", str(lr)], "values": {"lr": lr}}
    plan = {"provider": "local", "spec": {"name": job, "args": argv, "resources": resources}}
    plan["facts"] = {"folder": str(place)}
    folder = store.create(run_id, {"plan.json": json.dumps(plan)})
    arguments = {"lr": lr, "epochs": 3}
    born = {"name": job, "arguments": arguments, "tags": {"team": job}, "time": created}
    write_events(folder, {**BORN, **born})
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
        folder = a_run(home, new_run_id(home.data_dir, "n"), 0.1, losses)
        state = fold(folder.run_id, folder.events())
        assert state.series["val_loss"].best == (0.25, losses.index(0.25) + 1)


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


def test_many_runs_are_rows_that_the_terminal_has_room_for(
    home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"a-long-name-of-a-job-{number}" for number in range(5)]
    for number, name in enumerate(names):
        a_run(home, name, 0.1234567890123 + number, [0.5, 0.25], text=str(number) * 300)

    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = call("compare", *names).out.splitlines()
        assert max(map(len, lines)) <= width
        assert [line.split()[0] for line in lines[1:6]] == names
        heads = [line for line in lines if line.startswith("RUN")]
        shown = " ".join(heads).split()
        assert (shown.count("args.lr"), shown.count("val_loss")) == (1, 2)
        assert (len(heads) == 1) == (width == 200)

    monkeypatch.setenv("COLUMNS", "40")
    assert call("compare", *names[:2]).out.startswith("RUN ")


def test_without_names_the_newest_runs_of_the_job_are_compared(
    home: RunStore, tmp_path: Path
) -> None:
    jobs: list[tuple[str, Path]] = [*[("digits", tmp_path)] * 6, ("other", Path("/elsewhere"))]
    for number, (job, place) in enumerate(jobs):
        folder = a_run(home, f"{job}-{number}", number, [0.5], job=job, place=place)
        os.utime(folder.path / "plan.json", (number, number))

    result = call("compare", "--json")
    runs = [run["run"] for run in json.loads(result.out)["runs"]]
    assert runs == ["digits-5", "digits-4", "digits-3", "digits-2"]
    assert result.err.endswith("digits-2: the newest of digits from this folder\n")


# The list: arguments that differ, a metric, filters, and the best run.


def listed(*words: str) -> list[str]:
    return [run["run"] for run in json.loads(call("list", *words, "--json").out)]


def test_the_list_shows_a_metric_and_the_arguments_that_differ(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5, 0.25, 0.5])
    a_run(home, "b-2", 0.2, [NAN, 0.75])
    a_run(home, "c-3", 0.2, [], job="other")
    header, *rows = call("list").out.splitlines()
    assert header.split()[-2:] == ["METRIC", "ARGUMENTS"]
    assert {row.split()[0]: row.split()[11:] for row in rows} == {
        "a-1": ["val_loss", "0.25", "lr=0.1"],
        "b-2": ["val_loss", "0.75", "lr=0.2"],
        "c-3": [],
    }
    for _ in range(2):  # from the folder, then from the index
        first = {run["run"]: run for run in json.loads(call("list", "--json").out)}["a-1"]
        assert first["arguments"] == {"lr": 0.1, "epochs": 3}
        assert first["metrics"] == {"val_loss": 0.5, "val_accuracy": 0.5, "=x": 1.0}
        assert first["best"] == {"val_loss": 0.25, "val_accuracy": 0.75}


def test_runs_are_found_by_name_time_tag_and_metric(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5], created=100.0)
    a_run(home, "b-2", 0.2, [0.25, 0.75], created=200.0)
    a_run(home, "c-3", 0.3, [], created=300.0, job="other")
    assert listed("--name", "dig*") == ["b-2", "a-1"]
    assert listed("--name", "digits", "--since", "850 s") == ["b-2"]
    assert listed("--since", "1970-01-01T00:00:00+00:00") == ["c-3", "b-2", "a-1"]
    assert listed("--tag", "team=digits") == listed("--tag", "team", "--name", "digits")
    assert listed("--tag", "team=nobody") == []
    assert listed("--sort", "val_loss") == ["b-2", "a-1", "c-3"]
    assert listed("--sort", "val_accuracy", "--best") == ["b-2"]
    assert listed("--sort", "=x") == ["b-2", "a-1", "c-3"]
    assert listed("--best") == ["b-2"]
    for metric in ("=x", "val_los"):
        assert call("list", "--sort", metric, "--best").code == 2

    runs = cloudtrain.list_runs(only=cloudtrain.RunFilter(name="digits", tags=["team"]))
    assert cloudtrain.best_first(runs, "val_loss")[0]["run"] == "b-2"


def test_an_index_of_an_earlier_version_gets_the_new_columns(home: RunStore) -> None:
    a_run(home, "a-1", 0.1, [0.5])
    listed()
    index = home.data_dir / "index.jsonl"
    line = index.read_text()
    values = json.loads(line)
    for earlier in (values[:-5], dict(zip(FIELDS, values, strict=True))):
        index.write_text(json.dumps(earlier, separators=(",", ":")) + "\n")
        assert listed("--sort", "val_loss") == ["a-1"]
        assert index.read_text() == line


def test_secrets_and_long_texts_are_not_in_the_list(folder: Path) -> None:
    args = {"lr": 0.1, "api-key": "abcdefgh1234", "text": "x" * 1000, "flag": True}
    for values in (args, [f"--{name}={value}" for name, value in args.items()]):
        job = api.load({"entrypoint": "train.py", "args": values})
        arguments = submitting(api.plan(job, "local")).arguments or {}
        assert arguments.keys() == {"lr", "text", "flag"}
        assert len(arguments["text"]) == 100


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


def test_the_default_is_found_without_the_plans_of_older_runs(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        ended(f"digits-{number:04}")
    opened = []
    is_from = Submission.is_from

    def noted(submission: Submission, folder: Path) -> bool:
        opened.append(submission.id)
        return is_from(submission, folder)

    monkeypatch.setattr(Submission, "is_from", noted)
    assert call("status").err.startswith("digits-0019, the last run from this folder\n")
    assert opened == ["digits-0019"]


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
