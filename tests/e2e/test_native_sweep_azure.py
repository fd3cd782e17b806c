"""A `sweep` section as a sweep job on an imitated Azure ML: submitted once, watched, stopped, read
back as trials.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import CloudError, RunExists
from cloudtrain.providers import get_provider
from cloudtrain.providers.native_sweep import NativeSweeps
from cloudtrain.runs.files import as_text
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import read_space
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.run import Run
from cloudtrain.sweeps.driver import drive, request_stop
from cloudtrain.sweeps.events import Launching, RunEnded
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import drive_native, start_native
from cloudtrain.sweeps.planning import SweepPlan, plan_sweep
from cloudtrain.sweeps.suggest import grid_values
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain.sweeps.trials import RunTrials
from tests.fakes.azure.clients import cheap_clients
from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.jobs import forget
from tests.repo.tools import ROOT
from tests.support.executables import python_program
from tests.support.native_sweeps import (
    GRID,
    JOB,
    SWEEP,
    begin,
    drive_and_kill,
    ended,
    enter_job,
    hold_grid,
)
from tests.support.waiting import eventually

PROGRAM = f"""
import json, os, sys, time
sys.path.insert(0, {str(ROOT / "entrypoints")!r})
from cloudtrain_launcher.service_metric import MlflowServer
job, server = json.loads(os.environ["CLOUDTRAIN_JOB"]), MlflowServer(os.environ)
assert job["tuned"] and job["service_metric"] == "score" and "MASTER_ADDR" in os.environ
assert os.environ["CLOUDTRAIN_TUNED_x"] == os.environ["AZUREML_SWEEP_x"]
if os.environ.get("CLOUDTRAIN_TUNED_kind") == "broken":
    sys.exit("the dog ate it")
output = os.environ["CLOUDTRAIN_OUTPUT_DIR"] + "/" + os.environ["AZUREML_RUN_ID"]
for epoch in range(int(os.environ["EPOCHS"])):
    value = float(os.environ["CLOUDTRAIN_TUNED_x"]) + epoch
    print(json.dumps({{"score": value}}), flush=True)
    server.log_metric("score", value, epoch + 1)
while os.environ.get("WAIT") and not os.path.exists(output + "/.cloudtrain-stop"):
    time.sleep(0.02)
"""
"""What stands for `python3` in the image of most tests here: a launcher whose program is quick."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[AzureCloud]:
    forget()
    with cheap_clients(), AzureCloud() as made:
        yield made
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture(autouse=True)
def folder(cloud: AzureCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's folder; the image's python3 is the program of the test."""
    # The SDK sets it: what is unset here is unset again afterwards.
    monkeypatch.setenv("AZUREML_CURRENT_CLOUD", "")
    monkeypatch.delenv("AZUREML_CURRENT_CLOUD")
    enter_job(tmp_path, cloud.environment(), monkeypatch)
    use_path(cloud, python_program(tmp_path / "image" / "python3", PROGRAM).parent)
    cloud.endpoint.reset()
    return tmp_path


def use_path(cloud: AzureCloud, *folders: Path) -> None:
    """From now on containers look for their programs in these folders first."""
    path = os.pathsep.join((*map(str, folders), str(Path(sys.executable).parent), os.defpath))
    cloud.account.env = {**cloud.account.env, "PATH": path}


@pytest.fixture
def native() -> NativeSweeps:
    return get_provider("azure").native_sweeps()


def planned(cloud: AzureCloud, name: str, sweep: dict[str, Any], **more: Any) -> Any:
    job = {**JOB, "image": cloud.image, "sweep": {**SWEEP, **sweep}, **more}
    return cloudtrain.plan(cloudtrain.load(job), "azure", run_id=name)


def sweep_plan(cloud: AzureCloud, name: str, sweep: dict[str, Any], **more: Any) -> SweepPlan:
    job = {**JOB, "image": cloud.image, "sweep": {**SWEEP, "engine": "native", **sweep}, **more}
    return plan_sweep(cloudtrain.load(job), "azure", sweep_id=name)


def test_a_trial_is_read_back_with_its_values_and_becomes_an_ordinary_run(
    native: NativeSweeps, cloud: AzureCloud, folder: Path
) -> None:
    history = begin(planned(cloud, "random-1", {}))
    state = ended("azure", history)
    assert (state.state, state.reason) == ("succeeded", "")
    assert [(trial.number, trial.name) for trial in state.trials] == [
        (n, f"random-1_{n}") for n in range(5)
    ]
    for trial in state.trials:
        x, n, kind = (trial.parameters[key] for key in ("x", "n", "kind"))
        assert isinstance(x, float)
        assert 1e-3 <= x <= 1.0001
        assert n in range(1, 10)
        assert isinstance(n, int)
        assert any(kind is value or kind == value == "a" for value in ("a", 2, True))
        assert trial.state == "completed"
        assert cloud.service.jobs[trial.name].metrics["score"] == pytest.approx([x, x + 1])
    best = max(state.trials, key=lambda trial: float(trial.parameters["x"]))
    assert cloud.service.sweeps["random-1"].added["best_child_run_id"] == best.name
    assert "/runs/random-1?" in state.url
    trial = state.trials[0]
    assert trial.run is not None
    assert "/runs/random-1_0?" in trial.run.submitted.ref["url"]
    made = RunStore(folder / "data").create(trial.name, trial.run.documents(), trial.run.submitting)
    made.append(trial.run.submitted)
    run = Run(made)
    assert run.wait().state == "succeeded"
    assert run.status().billing is not None
    assert any('"score"' in str(line) for line in run.logs())
    assert made.document("request.json")["outputs"]["output"]["path"].endswith(
        "/runs/random-1/output/random-1_0/"
    )


def test_a_grid_has_the_points_of_our_own_and_a_bayesian_search_no_others(
    native: NativeSweeps, cloud: AzureCloud
) -> None:
    space = {"x": [3, 1], "n": "int(4, 5)"}
    sweep: dict[str, Any] = {"method": "grid", "space": space, "trials": None}
    state = ended("azure", begin(planned(cloud, "points-1", sweep)))
    values = product(*(grid_values(item) for item in read_space(space).values()))
    assert [tuple(trial.parameters.values()) for trial in state.trials] == list(values)
    sweep = {"method": "bayesian", "space": {"x": "uniform(0, 1)", "n": "int(4, 5)"}, "trials": 2}
    state = ended("azure", begin(planned(cloud, "points-2", sweep)))
    assert all(trial.parameters["n"] in (4, 5) for trial in state.trials)


def test_no_trial_is_started_twice_when_an_answer_is_lost(
    native: NativeSweeps, cloud: AzureCloud
) -> None:
    cloud.endpoint.fault("lost", "arm", "PutJob", 1)
    history = begin(planned(cloud, "lost-1", {"trials": 2}))
    assert len(ended("azure", history).trials) == 2
    lost = planned(cloud, "lost-1", {"trials": 3})
    request = native.render(lost)
    archive = pack_source(lost, None)
    with pytest.raises(RunExists, match="a job lost-1 exists already"):
        native.start(lost, request, history.folder, archive, None, history.record)


def test_failed_trials_say_why(native: NativeSweeps, cloud: AzureCloud) -> None:
    plan = sweep_plan(cloud, "broken-1", {"space": {"x": [1], "kind": ["broken"]}, "trials": 2})
    state = drive_native(start_native(plan, pack_source(plan.job, None), None))
    assert (state.state, state.reason) == ("failed", "All trials of the sweep job have failed.")
    assert [trial.state for trial in state.trials] == ["failed"] * 2
    assert (
        "the dog ate it" in state.trials[0].reason
        or "exited with status code 1" in state.trials[0].reason
    )


def test_a_sweep_whose_metric_azure_never_hears_of_has_failed(
    native: NativeSweeps, cloud: AzureCloud
) -> None:
    state = ended("azure", begin(planned(cloud, "unheard-1", {"trials": 1}, env={"EPOCHS": 0})))
    assert (state.state, state.reason) == ("failed", "Azure ML was told no score by any trial")
    assert [trial.state for trial in state.trials] == ["completed"]


def test_the_time_of_the_budget_ends_a_sweep_well(native: NativeSweeps, cloud: AzureCloud) -> None:
    history = begin(
        planned(cloud, "time-1", {"budget": {"max_time": "2 min"}}, env={"EPOCHS": 1, "WAIT": 1})
    )
    sweep = cloud.service.sweeps["time-1"]
    eventually(lambda: sum(bool(trial.metrics) for trial in sweep.trials) == 2)
    sweep.started -= 121
    state = ended("azure", history)
    assert (state.state, state.reason) == ("succeeded", "the time of the budget is over")
    assert [trial.state for trial in state.trials] == ["stopped", "stopped"]


def test_a_driver_that_is_killed_at_every_look_mirrors_each_trial_once(cloud: AzureCloud) -> None:
    plan = sweep_plan(cloud, "whole-1", {"trials": 3})
    folder = start_native(plan, pack_source(plan.job, None), None)
    state = drive_and_kill(folder)
    assert (state.state, [trial.state for trial in state.trials]) == (
        "succeeded",
        ["completed"] * 3,
    )
    for trial in state.trials:
        assert trial.run == f"whole-1_{trial.number}"
        assert 0 <= trial.spent_usd <= 0.30
    events = [event for event, _ in folder.events_from() if event is not None]
    assert sum(isinstance(event, Launching) for event in events) == 3
    assert sum(isinstance(event, RunEnded) for event in events) == 3


def test_a_stop_lets_trials_save_and_starts_no_more(cloud: AzureCloud) -> None:
    """The trials that run find the file in their own folders, and end by themselves; the rest is
    cancelled.
    """
    plan = sweep_plan(cloud, "stop-1", {}, env={"EPOCHS": 1, "WAIT": 1})
    folder = start_native(plan, pack_source(plan.job, None), None)
    sweep = cloud.service.sweeps["stop-1"]
    eventually(lambda: sum(bool(trial.metrics) for trial in sweep.trials) == 2)
    request_stop(folder)
    state = drive_native(folder)
    assert state.state == "stopped"
    assert [job.status for job in sweep.trials[:2]] == ["Completed", "Completed"], (
        "they were given the time to save"
    )
    assert sweep.status == "Canceled"
    assert len(sweep.trials) < 5


def test_a_sweep_that_the_service_refuses_has_failed_and_nothing_was_started(
    cloud: AzureCloud,
) -> None:
    plan = sweep_plan(cloud, "refused-1", {})
    cloud.endpoint.fault("denied", "arm", "PutJob", 1)
    with pytest.raises(CloudError):
        start_native(plan, pack_source(plan.job, None), None)
    folder = SweepFolder(Path(plan.job.context.data_dir, "sweeps", "refused-1"))
    assert Sweep(folder).status().state == "failed"
    assert "refused-1" not in cloud.service.sweeps


@pytest.mark.torchrun
def test_trials_of_a_grid_really_train(
    cloud: AzureCloud, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our launcher, which tells Azure ML what they reach, and their values where Azure ML does
    not tell them.
    """
    use_path(cloud)
    monkeypatch.setattr(cloud.account, "tells_parameters", False)
    plan = sweep_plan(cloud, "grid-1", GRID)
    made = start_native(plan, pack_source(plan.job, None), None)
    hold_grid(drive_native(made), made, folder)
    assert [cloud.service.jobs[f"grid-1_{n}"].metrics for n in (0, 1)] == [
        {"score": [0.0, 20.0]}
    ] * 2


@pytest.mark.torchrun
def test_a_trial_is_rehearsed_here_as_a_sweep_job_would_run_it(
    cloud: AzureCloud, folder: Path
) -> None:
    space = {"x": [0.5], "kind": [True]}
    sweep = {**SWEEP, "engine": "native", "method": "grid", "space": space, "trials": None}
    job = {**JOB, "image": cloud.image, "sweep": sweep}
    plan = plan_sweep(cloudtrain.load(job), "local", as_="azure", sweep_id="rehearsed")
    pack_source(plan.job, None)
    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    made = SweepFolder.create(folder / "data", plan.definition, documents)
    [trial] = drive(made, RunTrials(made, plan.definition)).trials
    assert (trial.state, trial.curve) == ("completed", [0.0, 5.0]), trial.reason
    run = Sweep(made).run_of(trial)
    request = run.folder.document("request.json")
    assert "CLOUDTRAIN_TUNED_x='0.5' CLOUDTRAIN_TUNED_kind='true'" in request["command"]
    assert "trial" not in request
    run.fetch(folder / "fetched")
    report = json.loads((folder / "fetched" / "model" / "seen.json").read_text())
    assert report["argv"] == ["--epochs", "2", "--x", "0.5", "--kind"]
    assert report["arguments"] == {"epochs": 2, "x": 0.5, "kind": True}
    assert report["run"] == "rehearsed-t000"
