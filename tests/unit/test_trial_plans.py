"""The plan of a trial's run: its values, its caps, its checkpoints, its share of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.files import as_text
from cloudtrain.sweeps.events import Launching
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.planning import plan_sweep
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.trials import TrialPlans

SWEEP = {
    "objective": {"metric": "val_accuracy", "goal": "maximize"},
    "method": "random",
    "space": {"lr": "loguniform(1e-4, 1e-1)", "env.SEED": [1, 2]},
    "trials": 4,
    "parallel": 4,
    "early_stopping": {"grace": 1, "eta": 2, "max": 8, "promote": "always"},
}
VALUES = {"lr": 0.00123, "env.SEED": 2}


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))


def plan_of(tmp_path: Path, launching: Launching, reports: int = 0, **spec: Any) -> Plan:
    job = cloudtrain.load({"name": "digits", "args": {"lr": 0.5}, "sweep": SWEEP, **spec})
    planned_sweep = plan_sweep(job, "local", sweep_id="digits-1", data_dir=str(tmp_path))
    documents = {
        "spec.yaml": planned_sweep.job.spec_text,
        "plan.json": as_text(planned_sweep.job.to_json()),
    }
    folder = SweepFolder.create(tmp_path, planned_sweep.definition, documents)
    trial = Trial(number=7, parameters=VALUES, curve=[0.5] * reports, position=22.0 * reports)
    resume_from = "/checkpoints" if launching.resumes else ""
    return TrialPlans(folder, planned_sweep.definition).plan(trial, launching, resume_from)


def launching(**values: Any) -> Launching:
    return Launching(time=1.0, trial=7, run="digits-1-t007", **values)


def test_a_trial_has_its_values_in_place_of_the_jobs_own(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launching())
    assert (plan.run_id, plan.spec.name) == ("digits-1-t007", "digits")
    assert plan.spec.args.argv == ("--lr", "0.00123")
    assert plan.spec.env["SEED"] == "2"


def test_a_trial_is_held_to_its_cap(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launching(cap_seconds=90.9), limits={"max_runtime": "1 h"})
    assert plan.spec.limits.max_runtime == 90


def test_trials_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launching(), checkpoints={"uri": str(tmp_path / "kept")})
    assert plan.spec.checkpoints.uri == f"{tmp_path / 'kept'}/digits-1-t007/"


def test_a_run_that_goes_on_from_a_rung_knows_what_was_reported_before(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launching(until=4, resumes="digits-1-t007-1"), reports=2)
    rules = plan.context.trial
    assert rules is not None
    assert (rules.trial, rules.until, rules.reports, rules.position) == (7, 4, 2, 44.0)
    assert (plan.context.resume_run, plan.context.resume_from) == (
        "digits-1-t007-1",
        "/checkpoints",
    )


def test_a_run_that_begins_anew_counts_from_nothing(tmp_path: Path) -> None:
    rules = plan_of(tmp_path, launching(until=1), reports=2).context.trial
    assert rules is not None
    assert (rules.reports, rules.position, rules.rungs) == (0, None, (1, 2, 4))


def test_trials_that_run_at_once_share_the_cores_of_this_machine(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launching(), resources={"processes": 2})
    launch = cloudtrain.render(plan).document["launches"][0]
    assert launch["env"]["OMP_NUM_THREADS"] == "2"
