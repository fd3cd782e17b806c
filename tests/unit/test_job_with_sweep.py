"""A job with a section `sweep` is a job as well: `check` and `plan` look at the search, `submit`
runs the one job.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runs.files import as_text
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.varied_settings import SECTIONS
from cloudtrain.sweeps.journal import Launching, SweepFolder
from cloudtrain.sweeps.planning import plan_sweep
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.sweep import list_sweeps
from cloudtrain.sweeps.trials import TrialPlans
from tests.repo.tools import ROOT
from tests.support.in_process import call

JOB = """\
name: digits
args: {task: digits, epochs: 9}
sweep:
  objective: {metric: val_accuracy, goal: maximize}
  space: {lr: loguniform(1e-4, 1e-1), batch-size: [16, 32]}
  trials: 9
  parallel: 3
"""


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path / "job")


SEARCHES = [
    path for path in sorted((ROOT / "examples").rglob("job.yaml")) if "sweep:" in path.read_text()
]


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.parent.name)
def test_the_sweeps_of_the_examples_are_right(path: Path) -> None:
    result = call("check", str(path), "--provider", "local", "--json")
    assert (result.code, json.loads(result.out)["warnings"]) == (0, [])


def test_a_fixed_setting_leaves_the_points_to_try_first() -> None:
    points = "sweep.try_first=[{lr: 0.01, batch-size: 32}]"
    words = ("--provider", "local", "--set", points, "--set", "args.lr=0.1")
    fixed = json.loads(call("sweep", "--dry-run", "--json", *words).out)
    assert fixed["try_first"] == [{"batch-size": 32}]


def test_a_setting_that_the_command_line_fixes_is_not_searched() -> None:
    fixed = json.loads(
        call("sweep", "--dry-run", "--json", "--provider", "local", "--set", "args.lr=0.1").out
    )
    assert list(fixed["space"]) == ["batch-size"]
    assert "lr loguniform" not in call("plan", "--provider", "local", "--set", "args.lr=0.1").out
    both = ["--set", "args.lr=0.1", "--set", "args.batch-size=32"]
    assert call("plan", "--provider", "local", *both).code == 0


def test_a_fixed_setting_reaches_every_trial(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data_dir = tmp_path_factory.mktemp("data")
    job = cloudtrain.load("job.yaml", ["args.lr=0.25", "sweep.method=random"])
    planned = plan_sweep(job, "local", data_dir=str(data_dir))
    documents = {"spec.yaml": planned.job.spec_text, "plan.json": as_text(planned.job.to_json())}
    folder = SweepFolder.create(data_dir, planned.definition, documents)
    trial = Trial(
        number=0,
        parameters=suggester_of(planned.definition).suggest(SweepState.new(planned.definition)),
    )
    plan = TrialPlans(folder, planned.definition).plan(
        trial, Launching(time=1.0, trial=0, run="digits-1-t000"), ""
    )
    assert set(trial.parameters) == {"batch-size"}
    assert dict(plan.spec.args.values)["lr"] == 0.25  # type: ignore[arg-type]


def test_a_sweep_of_a_version_that_learned_from_another_sweep_goes_on(tmp_path: Path) -> None:
    planned = plan_sweep(cloudtrain.load("job.yaml"), "local")
    documents = {
        "spec.yaml": planned.job.spec_text + "  learn_from: digits-k2x9\n",
        "plan.json": as_text(planned.job.to_json()),
    }
    folder = SweepFolder.create(tmp_path / "data", planned.definition, documents)
    definition = {
        **planned.definition.to_json(),
        "earlier": [{"parameters": {"lr": 0.01, "batch-size": 16}, "value": 0.9}],
    }
    (folder.path / "sweep.json").write_text(as_text(definition))

    shown = call("status", folder.sweep_id, "--json")
    assert json.loads(shown.out)["sweep"] == folder.sweep_id, shown.err
    assert [sweep.id for sweep in list_sweeps()] == [folder.sweep_id]

    trial = Trial(number=0, parameters={"lr": 0.01, "batch-size": 16})
    launching = Launching(time=1.0, trial=0, run=f"{folder.sweep_id}-t000")
    plan = TrialPlans(folder, folder.definition()).plan(trial, launching, "")
    assert dict(plan.spec.args.values)["lr"] == 0.01  # type: ignore[arg-type]


def test_every_field_of_a_job_varies_or_is_fixed_in_a_sweep() -> None:
    assert set(SECTIONS) == set(JobSpec.model_fields)
