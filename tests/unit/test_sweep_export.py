"""Trials in files for other programs: a table, and a study that Optuna opens."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar, Uniform
from cloudtrain.sweeps.events import Launching, Reported, Suggested
from cloudtrain.sweeps.optuna_studies import write_study
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.sweep import Sweep
from tests.support.function_trials import ended_sweep, sweep_of
from tests.support.in_process import call

SPACE: dict[str, Dimension] = {
    "lr": Uniform(1e-4, 1e-1, True),
    "state": Choice(("a, b", 'say "no"')),
    "same": Choice((1, True, 1.5)),
    "layers": Integers(1, 8),
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepState:
    """Return a sweep with one failed trial; most trials ended at a rung."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    options = {"sampler": "random", "trials": 9, "parallel": 3, "rungs": (1, 3), "last_report": 9}
    definition = sweep_of(SPACE, **options)
    folder = ended_sweep(tmp_path / "data", definition, fails=lambda run: run.endswith("t005"))
    return Sweep(folder).status()


def opened(file: Path) -> Any:
    optuna = pytest.importorskip("optuna")
    return optuna.load_study(study_name="digits-k2x9", storage=f"sqlite:///{file}")


def as_given(trial: Any) -> dict[str, Scalar]:
    """The values of Optuna's trial; of a choice whose values are equal each stands as text."""
    return {**trial.params, "same": {"1": 1, "True": True, "1.5": 1.5}[trial.params["same"]]}


def test_a_table_has_one_line_for_each_trial(state: SweepState) -> None:
    result = call("sweep", "export", "digits-k2x9", "-o", "trials.csv")
    assert (result.code, result.out) == (0, "trials.csv\n"), result.err
    with Path("trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in state.trials]
    for row, trial in zip(rows, state.trials, strict=True):
        assert row["parameters.state"] == trial.parameters["state"]
        assert (row["state"], row["run"], int(row["reports"])) == (
            trial.state,
            trial.run,
            trial.reports,
        )
        assert float(row["lr"]) == trial.parameters["lr"]
        assert float(row["usd"]) == trial.spent_usd
        assert (float(row["value"]) if row["value"] else None) == trial.value


def test_optuna_opens_every_trial_with_its_values_reports_and_state(
    state: SweepState, tmp_path: Path
) -> None:
    result = call("sweep", "export", "digits-k2x9", "-o", "optuna.db")
    assert (result.code, result.out) == (0, "optuna.db\n"), result.err
    study = opened(tmp_path / "optuna.db")
    states = {"completed": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    assert {trial.state for trial in state.trials} == {*states}
    assert [trial.state.name for trial in study.trials] == [
        states[trial.state] for trial in state.trials
    ]
    assert study.direction.name == "MAXIMIZE"
    assert state.best is not None
    assert (
        study.best_trial.number
        == max(
            (trial for trial in state.trials if trial.state == "completed"),
            key=lambda candidate: candidate.value or 0.0,
        ).number
    )
    for exported, trial in zip(study.trials, state.trials, strict=True):
        assert as_given(exported) == trial.parameters
        assert [type(value) for value in as_given(exported).values()] == [
            type(parameter) for parameter in trial.parameters.values()
        ]
        assert exported.intermediate_values == dict(enumerate(trial.curve, start=1))
        assert exported.user_attrs["run"] == trial.run
        assert exported.value == (None if trial.state == "failed" else trial.value)
    assert study.trials[0].distributions["lr"].log
    assert study.trials[0].distributions["layers"].high == 8


def test_a_sweep_that_goes_on_can_be_exported(state: SweepState, tmp_path: Path) -> None:
    going = SweepState.new(state.definition)
    for number, parameters in enumerate(trial.parameters for trial in state.trials[:2]):
        going.apply(Suggested(time=1.0, trial=number, parameters=parameters))
    going.apply(Launching(time=2.0, trial=0, run="digits-k2x9-t000"))
    going.apply(Reported(time=3.0, trial=0, report=1, value=math.nan))
    write_study(going, tmp_path / "a?b %20.db")
    (tmp_path / "a?b %20.db").rename(tmp_path / "going.db")
    study = opened(tmp_path / "going.db")
    assert [trial.state.name for trial in study.trials] == ["RUNNING", "RUNNING"]
    assert math.isnan(study.trials[0].intermediate_values[1])


@pytest.mark.parametrize(
    ("command", "name"),
    [("export", "trials.csv"), ("export", "optuna.db"), ("plot", "page.html")],
)
def test_no_file_is_overwritten_without_force(state: SweepState, command: str, name: str) -> None:
    Path(name).write_text("mine")
    assert call("sweep", command, "digits-k2x9", "-o", name).code == 2
    assert Path(name).read_text() == "mine"
    assert call("sweep", command, "digits-k2x9", "-o", name, "--force").code == 0
    assert Path(name).read_bytes() != b"mine"
    assert [file.name for file in Path().iterdir() if file.name.startswith(".")] == []


def test_without_optuna_the_line_that_installs_it_is_told(
    state: SweepState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused = call("sweep", "export", "digits-k2x9", "-o", "optuna.db")
    assert (refused.code, "pip install 'cloudtrain[sweeps]'" in refused.err) == (2, True)
    assert not Path("optuna.db").exists()
    result = call("sweep", "export", "digits-k2x9")
    assert Path(result.out.strip()).name == "digits-k2x9.csv"
    assert not Path("digits-k2x9.csv").exists()
