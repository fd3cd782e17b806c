"""A `sweep` section as a tuning job on an imitated SageMaker and as a sweep job on an imitated
Azure ML: submitted once, watched, stopped, read back as trials.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.context import pack_source
from cloudtrain.errors import CloudError, RunExists, UsageError
from cloudtrain.runs.files import as_text
from cloudtrain.sweeps import background
from cloudtrain.sweeps.driver import drive, request_stop
from cloudtrain.sweeps.journal import Launching, RunEnded, SweepFolder
from cloudtrain.sweeps.native import drive_native, start_native
from cloudtrain.sweeps.planning import SweepPlan, plan_sweep
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain.sweeps.trials import RunTrials
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud, cheap_clients
from tests.providers.azure.operations import forget
from tests.repo.tools import ROOT
from tests.support.aws_template import enforce
from tests.support.native_sweeps import (
    GRID,
    JOB,
    SWEEP,
    drive_and_kill,
    enter_job,
    hold_grid,
    image_program,
)
from tests.support.samples import python_program
from tests.support.waiting import eventually

SAGEMAKER_PROGRAM = """#!/usr/bin/env python3
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
AZURE_PROGRAM = f"""
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
"""Programs of the images: quick ones in place of the launcher."""

WAITING = {"EPOCHS": 1, "WAIT": 1}


class Aws:
    """SageMaker."""

    name = "aws"
    creation = ("sagemaker", "CreateHyperParameterTuningJob")

    def __init__(self, stack: ExitStack) -> None:
        self.cloud: Any = stack.enter_context(Cloud())
        enforce(self.cloud)

    def install(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from cloudtrain.providers.aws.client import aws

        aws.cache_clear()
        self.use(image_program(folder / "image" / "train", SAGEMAKER_PROGRAM))

    def use_launcher(self) -> None:
        self.use(ROOT / "docker")  # our image has its program `train` on its PATH

    def use(self, *programs: Path) -> None:
        """From now on containers find their programs in these folders."""
        path = os.pathsep.join((str(Path(sys.executable).parent), *map(str, programs), os.defpath))
        self.cloud.account.env = {**self.cloud.account.env, "PATH": path}

    def sweep(self, name: str) -> Any:
        return self.cloud.service.tuning_jobs.get(name)

    def reporting(self, name: str) -> int:
        return len(self.sweep(name).values)

    def age(self, name: str, seconds: int) -> None:
        self.sweep(name).created -= seconds


class Azure(Aws):
    """Azure ML."""

    name = "azure"
    creation = ("arm", "PutJob")

    def __init__(self, stack: ExitStack) -> None:
        forget()
        stack.enter_context(cheap_clients())
        self.cloud = stack.enter_context(AzureCloud())

    def install(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The SDK sets it: what is unset here is unset again afterwards.
        monkeypatch.setenv("AZUREML_CURRENT_CLOUD", "")
        monkeypatch.delenv("AZUREML_CURRENT_CLOUD")
        self.use(python_program(folder / "image" / "python3", AZURE_PROGRAM).parent)

    def use_launcher(self) -> None:
        self.use()

    def use(self, *programs: Path) -> None:
        path = os.pathsep.join((*map(str, programs), str(Path(sys.executable).parent), os.defpath))
        self.cloud.account.env = {**self.cloud.account.env, "PATH": path}

    def sweep(self, name: str) -> Any:
        return self.cloud.service.sweeps.get(name)

    def reporting(self, name: str) -> int:
        return sum(bool(trial.metrics) for trial in self.sweep(name).trials)

    def age(self, name: str, seconds: int) -> None:
        self.sweep(name).started -= seconds


@pytest.fixture(scope="module", params=[Aws, Azure], ids=["aws", "azure"])
def made(request: pytest.FixtureRequest) -> Iterator[Aws]:
    with ExitStack() as stack:
        site: Aws = request.param(stack)
        yield site


@pytest.fixture(autouse=True)
def site(made: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """Return a cloud; the working folder is the job's, and the image has the quick program."""
    enter_job(tmp_path, made.cloud.environment(), monkeypatch)
    made.install(tmp_path, monkeypatch)
    made.cloud.endpoint.reset()
    return made


def sweep_plan(site: Aws, name: str, sweep: dict[str, Any], **more: Any) -> SweepPlan:
    section = {**SWEEP, "engine": "native", **sweep}
    job = {**JOB, "image": site.cloud.image, "sweep": section, **more}
    return plan_sweep(cloudtrain.load(job), site.name, sweep_id=name)


def started(site: Aws, name: str, sweep: dict[str, Any], **more: Any) -> SweepFolder:
    plan = sweep_plan(site, name, sweep, **more)
    return start_native(plan, pack_source(plan.job, None), None)


def test_a_trial_is_read_back_and_becomes_an_ordinary_run(site: Aws) -> None:
    folder = started(site, "random-1", {"trials": 3})
    state = drive_native(folder)
    assert (state.state, state.reason) == ("succeeded", "")
    assert [trial.number for trial in state.trials] == [0, 1, 2]
    for trial in state.trials:
        x, n, kind = (trial.parameters[key] for key in ("x", "n", "kind"))
        assert isinstance(x, float)
        assert 1e-3 <= x <= 1.0001
        assert n in range(1, 10)
        assert isinstance(n, int)
        assert any(kind is value or kind == value == "a" for value in ("a", 2, True))
        assert trial.state == "completed"
    run = Sweep(folder).run_of(state.trials[0])
    assert run.status().state == "succeeded"
    assert run.status().billing is not None
    assert any('"score"' in str(line) for line in run.logs())


def test_no_trial_is_started_twice_when_an_answer_is_lost(
    site: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.cloud.endpoint.fault("lost", *site.creation, 1)
    assert len(drive_native(started(site, "lost-1", {"trials": 2})).trials) == 2
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "of another person"))
    with pytest.raises(RunExists, match="lost-1 exists already"):
        started(site, "lost-1", {"trials": 3})


def test_failed_trials_have_a_reason(site: Aws) -> None:
    sweep = {"space": {"x": [1], "kind": ["broken"]}, "trials": 2}
    state = drive_native(started(site, "broken-1", sweep))
    assert state.state == "failed"
    assert [trial.state for trial in state.trials] == ["failed"] * 2
    reason = state.trials[0].reason
    assert "the dog ate it" in reason or "exited with status code 1" in reason


def test_a_sweep_without_its_metric_has_failed(site: Aws) -> None:
    if site.name == "aws":
        pytest.skip("SageMaker itself fails such a training job")
    state = drive_native(started(site, "unheard-1", {"trials": 1}, env={"EPOCHS": 0}))
    assert state.state == "failed"
    assert "score" in state.reason


def test_trials_that_the_service_ends_early_are_pruned(site: Aws) -> None:
    sweep: dict[str, Any] = {"method": "asha", "trials": 3, "early_stopping": {"max": 2}}
    more: dict[str, Any] = {}
    if site.name == "azure":
        sweep = {"trials": 3}
        policy = {"type": "bandit", "slack_factor": 0.1, "evaluation_interval": 1}
        more = {"azure": {"early_termination": policy}}
    state = drive_native(started(site, "pruned-1", sweep, env={"EPOCHS": 3, "WAIT": 2}, **more))
    assert state.state == "succeeded"
    assert {trial.state for trial in state.trials} == {"pruned"}


def test_the_time_of_the_budget_ends_a_sweep_well(site: Aws) -> None:
    sweep = {"budget": {"max_time": "2 min"}}
    folder = started(site, "time-1", sweep, env=WAITING)
    eventually(lambda: site.reporting("time-1") == 2)
    site.age("time-1", 121)
    state = drive_native(folder)
    assert (state.state, state.reason) == ("succeeded", "the time of the budget is over")
    assert [trial.state for trial in state.trials] == ["stopped", "stopped"]


def test_a_driver_that_is_killed_at_every_look_mirrors_each_trial_once(site: Aws) -> None:
    folder = started(site, "whole-1", {"trials": 3})
    state = drive_and_kill(folder)
    assert state.state == "succeeded"
    assert [trial.state for trial in state.trials] == ["completed"] * 3
    assert all(0 <= trial.spent_usd <= 0.30 for trial in state.trials)
    events = [event for event, _ in folder.events_from() if event is not None]
    assert sum(isinstance(event, Launching) for event in events) == 3
    assert sum(isinstance(event, RunEnded) for event in events) == 3


def test_a_stop_ends_running_trials_and_starts_no_more(
    site: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = started(site, "stop-1", {}, env=WAITING)
    eventually(lambda: site.reporting("stop-1") == 2)
    request_stop(folder)
    monkeypatch.setattr("sys.argv", ["background", str(folder.path)])
    assert background.main() == 0
    state = Sweep(folder).status()
    assert state.state == "stopped"
    assert len(state.trials) < 5
    if site.name == "azure":  # trials find a file in their own folders, and have time to save
        assert [job.status for job in site.sweep("stop-1").trials[:2]] == ["Completed"] * 2
    with pytest.raises(UsageError, match="takes no more trials"):
        Sweep(folder).plan_extension(3)


def test_a_sweep_that_the_service_refuses_has_failed_and_is_not_started(site: Aws) -> None:
    plan = sweep_plan(site, "refused-1", {})
    site.cloud.endpoint.fault("denied", *site.creation, 1)
    with pytest.raises(CloudError):
        start_native(plan, pack_source(plan.job, None), None)
    folder = SweepFolder(Path(plan.job.context.data_dir, "sweeps", "refused-1"))
    assert Sweep(folder).status().state == "failed"
    assert site.sweep("refused-1") is None


@pytest.mark.thorough  # a trial that is rehearsed trains, and one that is read back has run
@pytest.mark.torchrun
def test_trials_of_a_grid_really_train(
    site: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our launcher, which reports values to Azure ML, and finds its settings in variables."""
    site.use_launcher()
    if site.name == "azure":
        monkeypatch.setattr(site.cloud.account, "tells_parameters", False)
    folder = started(site, "grid-1", GRID)
    hold_grid(drive_native(folder), folder, tmp_path)
    if site.name == "azure":
        metrics = [site.cloud.service.jobs[f"grid-1_{n}"].metrics for n in (0, 1)]
        assert metrics == [{"score": [0.0, 20.0]}] * 2


@pytest.mark.torchrun
def test_a_trial_is_rehearsed_as_the_service_would_run_it(site: Aws, tmp_path: Path) -> None:
    space = {"x": [0.5], "kind": [True]}
    sweep = {**SWEEP, "engine": "native", "method": "grid", "space": space, "trials": None}
    job = {**JOB, "image": site.cloud.image, "sweep": sweep}
    plan = plan_sweep(cloudtrain.load(job), "local", as_=site.name, sweep_id="rehearsed")
    pack_source(plan.job, None)
    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    folder = SweepFolder.create(tmp_path / "data", plan.definition, documents)
    [trial] = drive(folder, RunTrials(folder, plan.definition)).trials
    assert (trial.state, trial.curve) == ("completed", [0.0, 5.0]), trial.reason
    run = Sweep(folder).run_of(trial)
    request = run.folder.document("request.json")
    if site.name == "aws":
        chosen = {"x": "0.5", "kind": "true", "_tuning_objective_metric": "score"}
        assert request["HyperParameters"] == chosen
    else:
        assert "CLOUDTRAIN_TUNED_x='0.5' CLOUDTRAIN_TUNED_kind='true'" in request["command"]
    run.fetch(tmp_path / "fetched")
    report = json.loads((tmp_path / "fetched" / "model" / "seen.json").read_text())
    assert report["argv"] == ["--epochs", "2", "--x", "0.5", "--kind"]
    assert report["arguments"] == {"epochs": 2, "x": 0.5, "kind": True}
    assert report["run"] == "rehearsed-t000"
