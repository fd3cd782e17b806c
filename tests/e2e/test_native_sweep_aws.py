"""A `sweep` section as a tuning job on an imitated SageMaker: submitted once, watched, stopped,
read back as trials.
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
from cloudtrain.errors import CloudError, RunExists, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.native_sweep import NativeSweeps
from cloudtrain.runs.files import as_text
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import read_space
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.run import Run
from cloudtrain.sweeps import background
from cloudtrain.sweeps.driver import drive, request_stop
from cloudtrain.sweeps.events import Launching, RunEnded
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import drive_native, start_native
from cloudtrain.sweeps.planning import SweepPlan, plan_sweep
from cloudtrain.sweeps.suggest import grid_values
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain.sweeps.trials import RunTrials
from tests.fakes.aws.cloud import Cloud
from tests.support.aws_template import enforce
from tests.support.native_sweeps import (
    GRID,
    JOB,
    SWEEP,
    begin,
    drive_and_kill,
    ended,
    enter_job,
    hold_grid,
    image_program,
)
from tests.support.waiting import eventually

DOCKER = Path(__file__).parents[2] / "docker"
"""The folder of the program `train` that our image has on its PATH."""

IMAGE_PROGRAM = """#!/usr/bin/env python3
import json, os, signal, sys, time
base = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
chosen = json.load(open(base + "/input/config/hyperparameters.json"))
job = json.load(open(base + "/input/data/cloudtrain-job/job.json"))
if chosen.get("kind") == "broken":
    open(base + "/output/failure", "w").write("the dog ate it")
    sys.exit(1)
for epoch in range(int(os.environ["EPOCHS"])):
    print('{"score": %r}' % (float(chosen["x"]) + epoch), flush=True)
    if epoch + 1 == int(os.environ.get("WAIT", 0)):
        signal.pause()
assert chosen["_tuning_objective_metric"] == "score" and job["tuned"]
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        enforce(made)
        yield made
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture(autouse=True)
def folder(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the job's folder; the image has the test's program."""
    from cloudtrain.providers.aws.client import aws

    aws.cache_clear()
    enter_job(tmp_path, cloud.environment(), monkeypatch)
    use_image(cloud, image_program(tmp_path / "image" / "train", IMAGE_PROGRAM))
    cloud.endpoint.reset()
    return tmp_path


def use_image(cloud: Cloud, programs: Path) -> None:
    """From now on containers find their `train` in this folder."""
    path = os.pathsep.join((str(Path(sys.executable).parent), str(programs), os.defpath))
    cloud.account.env = {**cloud.account.env, "PATH": path}


@pytest.fixture
def native() -> NativeSweeps:
    return get_provider("aws").native_sweeps()


def planned(cloud: Cloud, name: str, sweep: dict[str, Any], **more: Any) -> Any:
    job = {**JOB, "image": cloud.image, "sweep": {**SWEEP, **sweep}, **more}
    return cloudtrain.plan(cloudtrain.load(job), "aws", run_id=name)


def test_trials_are_read_back_with_their_own_types_and_values(
    native: NativeSweeps, cloud: Cloud
) -> None:
    history = begin(planned(cloud, "random-1", {}))
    state = ended("aws", history)
    assert (state.state, state.reason) == ("succeeded", "")
    assert [trial.number for trial in state.trials] == [0, 1, 2, 3, 4]
    assert [trial.name[:12] for trial in state.trials] == [f"random-1-00{n}" for n in range(1, 6)]
    for trial in state.trials:
        x, n, kind = (trial.parameters[key] for key in ("x", "n", "kind"))
        assert isinstance(x, float)
        assert 1e-3 <= x <= 1
        assert n in range(1, 10)
        assert isinstance(n, int)
        assert any(kind is value or kind == value == "a" for value in ("a", 2, True))
        assert trial.state == "completed"
        assert trial.value == pytest.approx(x + 1)
    described = cloud.service.tuning_jobs["random-1"].describe()
    assert (
        described["HyperParameterTuningJobConfig"]["ResourceLimits"]["MaxParallelTrainingJobs"] == 2
    )
    assert state.url.endswith("#/hyper-tuning-jobs/random-1")


def test_a_grid_has_the_points_of_our_own(native: NativeSweeps, cloud: Cloud) -> None:
    sweep = {"method": "grid", "space": {"x": [3, 1], "n": "int(4, 5)"}, "trials": None}
    state = ended("aws", begin(planned(cloud, "points-1", sweep)))
    values = product(*(grid_values(item) for item in read_space(sweep["space"]).values()))
    assert [tuple(trial.parameters.values()) for trial in state.trials] == list(values)


def test_a_trial_becomes_an_ordinary_run(native: NativeSweeps, cloud: Cloud, folder: Path) -> None:
    state = ended("aws", begin(planned(cloud, "runs-1", {"trials": 1})))
    [trial] = state.trials
    assert trial.run is not None
    store = RunStore(folder / "data")
    made = store.create(trial.name, trial.run.documents(), trial.run.submitting)
    made.append(trial.run.submitted)
    run = Run(made)
    assert run.wait().state == "succeeded"
    assert run.status().billing is not None
    assert any('"score"' in str(line) for line in run.logs())


def test_no_trial_is_started_twice_when_an_answer_is_lost(
    native: NativeSweeps, cloud: Cloud
) -> None:
    cloud.endpoint.fault("lost", "sagemaker", "CreateHyperParameterTuningJob", 1)
    history = begin(planned(cloud, "lost-1", {"trials": 2}))
    assert len(ended("aws", history).trials) == 2
    lost = planned(cloud, "lost-1", {"trials": 3})
    request = native.render(lost)
    archive = pack_source(lost, None)
    with pytest.raises(RunExists, match="a tuning job lost-1 exists already"):
        native.start(lost, request, history.folder, archive, None, history.record)


def test_a_submission_that_was_interrupted_is_found_again(
    native: NativeSweeps, cloud: Cloud
) -> None:
    cloud.endpoint.fault("lost", "sagemaker", "CreateHyperParameterTuningJob", 1)
    cloud.endpoint.fault("error", "sagemaker", "DescribeHyperParameterTuningJob", 1, times=9)
    with pytest.raises(CloudError, match="whether the job found-1 exists is not known yet"):
        begin(planned(cloud, "found-1", {"trials": 1}))
    cloud.endpoint.reset()
    history = History(RunStore(Path(os.environ["CLOUDTRAIN_DATA_DIR"], "sweeps")).open("found-1"))
    history.read()
    assert history.state.ref is None
    assert [trial.state for trial in ended("aws", history).trials] == ["completed"]
    assert history.state.ref is not None


def test_a_stop_ends_all_trials_and_starts_no_more(native: NativeSweeps, cloud: Cloud) -> None:
    history = begin(planned(cloud, "stop-1", {}, env={"EPOCHS": 1, "WAIT": 1}))
    tuning = cloud.service.tuning_jobs["stop-1"]
    eventually(lambda: len(tuning.values) == 2)
    assert native.stop(history.folder, history.read(), history.record)
    state = ended("aws", history)
    assert (state.state, [trial.state for trial in state.trials]) == (
        "stopped",
        ["stopped", "stopped"],
    )
    assert native.stop(history.folder, history.read(), history.record), "repeating it does no harm"


def test_failed_trials_say_why(native: NativeSweeps, cloud: Cloud) -> None:
    state = ended(
        "aws",
        begin(planned(cloud, "broken-1", {"space": {"x": [1], "kind": ["broken"]}, "trials": 2})),
    )
    assert state.state == "failed"
    assert state.reason.startswith("All training jobs failed")
    assert {(trial.state, trial.value, trial.reason) for trial in state.trials} == {
        ("failed", None, "the dog ate it (exit code 1)")
    }


def test_hyperband_prunes_trials(native: NativeSweeps, cloud: Cloud) -> None:
    sweep = {"method": "asha", "trials": 3, "early_stopping": {"max": 2}}
    state = ended("aws", begin(planned(cloud, "pruned-1", sweep, env={"EPOCHS": 3, "WAIT": 2})))
    assert state.state == "succeeded"
    assert {trial.state for trial in state.trials} == {"pruned"}


def test_the_time_of_the_budget_ends_a_sweep_well(native: NativeSweeps, cloud: Cloud) -> None:
    history = begin(
        planned(cloud, "time-1", {"budget": {"max_time": "2 min"}}, env={"EPOCHS": 1, "WAIT": 1})
    )
    tuning = cloud.service.tuning_jobs["time-1"]
    eventually(lambda: len(tuning.values) == 2)
    tuning.created -= 121
    state = ended("aws", history)
    assert (state.state, state.reason) == ("succeeded", "the time of the budget is over")
    assert [trial.state for trial in state.trials] == ["stopped", "stopped"]


def sweep_plan(cloud: Cloud, name: str, sweep: dict[str, Any], **more: Any) -> SweepPlan:
    job = {**JOB, "image": cloud.image, "sweep": {**SWEEP, "engine": "native", **sweep}, **more}
    return plan_sweep(cloudtrain.load(job), "aws", sweep_id=name)


def test_a_driver_that_is_killed_at_every_look_mirrors_each_trial_once(cloud: Cloud) -> None:
    plan = sweep_plan(cloud, "whole-1", {})
    folder = start_native(plan, pack_source(plan.job, None), None)
    state = drive_and_kill(folder)
    assert (state.state, [trial.state for trial in state.trials]) == (
        "succeeded",
        ["completed"] * 5,
    )
    for trial in state.trials:
        x = trial.parameters["x"]
        assert isinstance(x, float)
        assert trial.run.startswith("whole-1-00")
        assert trial.spent_usd <= 0.24
    events = [event for event, _ in folder.events_from() if event is not None]
    assert sum(isinstance(event, Launching) for event in events) == 5
    assert sum(isinstance(event, RunEnded) for event in events) == 5


def test_a_sweep_is_stopped_by_its_driver(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep_plan(cloud, "whole-2", {}, env={"EPOCHS": 1, "WAIT": 1})
    folder = start_native(plan, pack_source(plan.job, None), None)
    eventually(lambda: len(cloud.service.tuning_jobs["whole-2"].values) == 2)
    request_stop(folder)
    monkeypatch.setattr("sys.argv", ["background", str(folder.path)])
    assert background.main() == 0
    state = Sweep(folder).status()
    assert (state.state, [trial.state for trial in state.trials]) == (
        "stopped",
        ["stopped", "stopped"],
    )
    with pytest.raises(UsageError, match="takes no more trials"):
        Sweep(folder).plan_extension(3)


def test_a_sweep_that_the_service_refuses_has_failed_and_nothing_was_started(cloud: Cloud) -> None:
    cloud.account.tuning_parallel = 1
    plan = sweep_plan(cloud, "whole-3", {})
    try:
        with pytest.raises(
            CloudError, match="parallel training jobs per hyperparameter tuning job"
        ):
            start_native(plan, pack_source(plan.job, None), None)
    finally:
        cloud.account.tuning_parallel = 10
    folder = SweepFolder(Path(plan.job.context.data_dir, "sweeps", "whole-3"))
    assert Sweep(folder).status().state == "failed"
    assert "whole-3" not in cloud.service.tuning_jobs


@pytest.mark.torchrun
def test_trials_of_a_grid_really_train(cloud: Cloud, folder: Path) -> None:
    """By the image's own `train` and our launcher."""
    use_image(cloud, DOCKER)
    plan = sweep_plan(cloud, "grid-1", GRID)
    made = start_native(plan, pack_source(plan.job, None), None)
    hold_grid(drive_native(made), made, folder)


@pytest.mark.torchrun
def test_a_trial_is_rehearsed_here_as_a_tuning_job_would_run_it(cloud: Cloud, folder: Path) -> None:
    space = {"x": [0.5], "kind": [True]}
    sweep = {**SWEEP, "engine": "native", "method": "grid", "space": space, "trials": None}
    job = {**JOB, "image": cloud.image, "sweep": sweep}
    plan = plan_sweep(cloudtrain.load(job), "local", as_="aws", sweep_id="rehearsed")
    pack_source(plan.job, None)
    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    made = SweepFolder.create(folder / "data", plan.definition, documents)
    [trial] = drive(made, RunTrials(made, plan.definition)).trials
    assert (trial.state, trial.curve) == ("completed", [0.0, 5.0]), trial.reason
    run = Sweep(made).run_of(trial)
    request = run.folder.document("request.json")
    assert "ContainerEntrypoint" not in request["AlgorithmSpecification"]
    assert request["HyperParameters"] == {
        "x": "0.5",
        "kind": "true",
        "_tuning_objective_metric": "score",
    }
    run.fetch(folder / "fetched")
    report = json.loads((folder / "fetched" / "model" / "seen.json").read_text())
    assert report["argv"] == ["--epochs", "2", "--x", "0.5", "--kind"]
    assert report["arguments"] == {"epochs": 2, "x": 0.5, "kind": True}
    assert report["run"] == "rehearsed-t000"
