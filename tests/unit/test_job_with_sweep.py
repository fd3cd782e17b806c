"""A job with a section `sweep` is a job as well: `check` and `plan` look at the search, `submit`
runs the one job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.runs.files import as_text
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.search_space import read_dimension
from cloudtrain.spec.varied_settings import SECTIONS
from cloudtrain.sweeps.definition import Definition, EarlierTrial
from cloudtrain.sweeps.journal import Launching, Suggested, SweepFolder
from cloudtrain.sweeps.planning import plan_sweep
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.trials import TrialPlans
from tests.repo.tools import ROOT
from tests.support.function_trials import ended_sweep, sweep_of
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


def test_check_and_plan_refuse_a_search_that_cannot_be_right() -> None:
    wrong = [
        "--provider",
        "local",
        "--set",
        "sweep.space.learning=[1, 2]",
        "--set",
        "sweep.space.seed=[-1, 2]",
    ]
    for command in ("check", "plan"):
        result = call(command, *wrong)
        assert result.code == 2
        assert "sweep.space.learning: the shared trainer has no option --learning" in result.err
    assert "refused  submit would refuse it" in result.out


SEARCHES = [
    path for path in sorted((ROOT / "examples").rglob("job.yaml")) if "sweep:" in path.read_text()
]


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.parent.name)
def test_the_sweeps_of_the_examples_are_right(path: Path) -> None:
    result = call("check", str(path), "--provider", "local", "--json")
    assert (result.code, json.loads(result.out)["warnings"]) == (0, [])


LEARNING = ("--provider", "local", "--set", "sweep.learn_from=digits-k2x9")
RATE = "sweep.space={lr: 'loguniform(1e-3, 1e-1)'}"


def earlier_sweep(data_dir: Path, **options: Any) -> None:
    """Create a sweep of 30 trials whose best learning rate is 0.01; some failed."""
    space = {"lr": read_dimension("loguniform(1e-4, 1e-1)")}
    fields = {"metric": "val_accuracy", "sampler": "random", "trials": 30, **options}
    ended_sweep(data_dir, sweep_of(space, **fields), fails=lambda run: run.endswith("7"))


def test_a_sweep_starts_from_the_results_of_an_earlier_one(tmp_path: Path) -> None:
    earlier_sweep(tmp_path / "data")
    result = call("sweep", "--dry-run", "--json", *LEARNING, "--set", RATE)
    definition = json.loads(result.out)
    earlier = definition["earlier"]
    assert 10 < len(earlier) < 30
    assert f"bayesian (TPE), from {len(earlier)} results of digits-k2x9" in result.err
    assert all(trial["parameters"]["lr"] >= 1e-3 for trial in earlier)
    assert {trial["value"] is None for trial in earlier} == {True, False}

    def first_rate(seed: int, trials: Any) -> float:
        document = {**definition, "seed": seed, "earlier": trials}
        search = Definition.from_json(document)
        return float(suggester_of(search).suggest(SweepState.new(search))["lr"])

    taught = sum(0.004 < first_rate(seed, earlier) < 0.025 for seed in range(8))
    untaught = sum(0.004 < first_rate(seed, []) < 0.025 for seed in range(8))
    assert taught >= 6 > untaught


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        ({}, (), "no trial of sweep digits-k2x9 has a result in this space"),
        ({"metric": "loss"}, ("--set", RATE), "another objective: loss, maximize"),
        ({}, ("--set", "sweep.learn_from=other"), "there is no sweep 'other'"),
    ],
)
def test_an_earlier_sweep_that_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    earlier_sweep(tmp_path / "data", **options)
    result = call("plan", *LEARNING, *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_point_of_an_earlier_sweep_is_not_repeated() -> None:
    space = {"lr": read_dimension("choice(0.1, 0.01, 0.001)")}
    earlier = (EarlierTrial(parameters={"lr": 0.01}, value=0.9),)
    definition = sweep_of(space, sampler="tpe", trials=3, earlier=earlier)
    state = SweepState.new(definition)
    rates = []
    for number in range(3):
        parameters = suggester_of(definition).suggest(state)
        state.apply(Suggested(time=1.0, trial=number, parameters=parameters))
        rates.append(parameters["lr"])
    assert (sorted(map(float, rates)), rates[2]) == ([0.001, 0.01, 0.1], 0.01)


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
    both = ["--provider", "local", "--set", "args.lr=0.1", "--set", "args.batch-size=32"]
    assert call("plan", *both).code == 0
    assert "leaves nothing to vary" in call("sweep", *both).err


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


def test_every_field_of_a_job_varies_or_is_fixed_in_a_sweep() -> None:
    assert set(SECTIONS) == set(JobSpec.model_fields)
