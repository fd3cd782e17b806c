"""Sweeps that a provider refuses, and the plans of trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.catalog.pricing import Price
from cloudtrain.declaration import Declaration
from cloudtrain.planning.cost import CostEstimate
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import sweep_of
from cloudtrain.runs.files import as_text
from cloudtrain.sweeps import rules
from cloudtrain.sweeps.journal import Launching, SweepFolder
from cloudtrain.sweeps.planning import plan_sweep
from cloudtrain.sweeps.planning import planned as sweep_plan
from cloudtrain.sweeps.rules import as_checked_here, sweep_issues
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.trials import TrialPlans
from tests.golden.cases import plan_of

# Sweeps that a provider refuses or warns about: at the line, before anything is paid for.

AWS = "resources: {gpus: 8, gpu: A100-40GB}"
SPACE = "space: {lr: loguniform(1e-4, 1e-1)}"


def plan(
    section: str, job: str = "args: {epochs: 9}", *, provider: str = "local", objective: str = ""
) -> Plan:
    goal = objective or "metric: val_loss, goal: minimize"
    return plan_of(provider, f"name: digits\n{job}\nsweep:\n  objective: {{{goal}}}\n  {section}\n")


def messages_of(planned: Plan) -> list[str]:
    return [
        f"{'' if issue.is_error else 'warning '}{issue.line()}" for issue in sweep_issues(planned)
    ]


def priced(planned: Plan, usd: float | None, *, seconds: int = 3600) -> Plan:
    """The plan at a price per hour of its one machine; None: unknown."""
    price = None if usd is None else Price(usd=usd, as_of="2026-01-01", source="a table")
    estimate = CostEstimate(
        price=price, nodes=1, max_seconds=seconds, cap="limits.max_runtime", overhead_seconds=0
    )
    return replace(planned, target=replace(planned.target, cost_estimate=estimate))


def test_a_sweep_that_is_right_has_nothing_to_be_told() -> None:
    assert messages_of(plan(f"trials: 3\n  {SPACE}")) == []


def test_metric_missing_in_the_script_warns_unless_a_pattern_matches(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"

    def lines(text: str, job: str = "") -> list[str]:
        script.write_text(text)
        planned = plan(f"trials: 3\n  {SPACE}", f"entrypoint: train.py\n{job}")
        source = replace(planned.context.source, root=str(tmp_path))
        return messages_of(replace(planned, context=replace(planned.context, source=source)))

    assert lines("log_metrics(val_loss=1)") == []
    assert lines("print(1)", "metrics: {val_loss: 'loss ([0-9.]+)'}") == []
    assert len(lines("log_metrics(my_val_loss=1)")) == 1


@pytest.mark.parametrize(
    ("usd", "limits", "budget", "message"),
    [
        (
            None,
            "max_runtime: 1 h",
            "100 USD",
            "cannot be kept: the price of this machine is unknown",
        ),
        (10.0, "max_runtime: 1 h", "9 USD", "is less than one trial may cost: 10.00 USD"),
        (10.0, "max_runtime: 1 h", "40 USD", None),
        # Without a limit each trial gets its share.
        (10.0, "", "0.40 USD", "pays for 36 s of each of 4 trials at 10.00 USD per hour"),
        (10.0, "", "4 USD", None),
    ],
)
def test_a_budget_in_money_is_held_against_what_trials_may_cost(
    usd: float | None, limits: str, budget: str, message: str | None
) -> None:
    section = f"trials: 4\n  budget: {{max_cost: {budget}}}\n  {SPACE}"
    planned = plan(section, f"limits: {{{limits}}}\n{AWS}", provider="aws")
    costs = [line.partition("budget.max_cost: ")[2] for line in messages_of(priced(planned, usd))]
    assert costs == ([message] if message else [])


def test_early_stopping_needs_a_provider_whose_jobs_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declared(name: str, *, publishes: bool) -> Declaration:
        return Declaration(
            name=name, label="The cluster", input_schemes=(), input_example="", publishes=publishes
        )

    planned = plan(f"method: asha\n  trials: 3\n  {SPACE}")
    monkeypatch.setattr(rules, "declaration_of", lambda name: declared(name, publishes=True))
    assert messages_of(planned) == []
    monkeypatch.setattr(rules, "declaration_of", lambda name: declared(name, publishes=False))
    (line,) = messages_of(planned)
    assert "sweep.method: needs messages from the driver" in line


def test_trial_that_the_provider_refuses_fails_before_the_first_trial() -> None:
    job = (
        f"entrypoint: run.sh\nmetrics: {{val_loss: 'loss ([0-9.]+)'}}\n{AWS}\naws:"
        " {network_isolation: true}"
    )
    (line,) = messages_of(
        plan(
            f"method: asha\n  trials: 3\n  early_stopping: {{max: 9}}\n  {SPACE}",
            job,
            provider="aws",
        )
    )
    assert line.startswith("job.yaml:5:7: aws.network_isolation: ")
    assert messages_of(plan(f"method: random\n  trials: 3\n  {SPACE}", job, provider="aws")) == []


def test_a_sampler_that_learns_needs_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "find_spec", lambda _: None)
    (line,) = messages_of(plan(f"trials: 3\n  {SPACE}"))
    assert (
        line == "job.yaml:3:1: sweep.method: tpe chooses values by Optuna, which is not installed"
    )
    assert messages_of(plan(f"method: random\n  trials: 3\n  {SPACE}")) == []


RAY = f"trials: 3\n  engine: ray\n  {SPACE}"


@pytest.fixture
def has_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Ray as installed or missing."""
    monkeypatch.setattr(rules, "find_spec", lambda _: True)


@pytest.mark.usefixtures("has_ray")
def test_ray_runs_trials_as_processes_of_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages_of(plan(RAY)) == []
    message = "job.yaml:6:3: sweep.engine: runs trials as processes on the machines of its cluster"
    refused = [
        plan(RAY, AWS, provider="aws"),
        plan(RAY, "image: {docker: trainer:1}", provider="docker"),
        replace(plan(RAY, AWS, provider="aws"), host=plan(RAY).host),
    ]
    for planned in refused:
        assert any(line.startswith(message) for line in messages_of(planned))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")
    assert messages_of(plan(RAY)) == []
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    (line,) = messages_of(plan(RAY))
    assert "RAY_ADDRESS is ray://head:10001" in line


def test_ray_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "find_spec", lambda name: name != "ray" or None)
    assert messages_of(plan(RAY)) == [
        "job.yaml:6:3: sweep.engine: needs Ray, which is not installed"
    ]


@pytest.mark.usefixtures("has_ray")
def test_gpus_of_a_ray_cluster_are_not_looked_up_on_this_machine() -> None:
    planned = plan(RAY, "resources: {gpus: 4}")
    assert (planned.gpus, as_checked_here(planned).gpus) == (4, 0)
    alone = plan(f"trials: 3\n  {SPACE}", "resources: {gpus: 4}")
    assert as_checked_here(alone) is alone


@pytest.mark.usefixtures("has_ray")
def test_trials_may_share_a_gpu_and_have_cpus_of_their_own() -> None:
    section = f"trials: 3\n  engine: ray\n  ray: {{cpus: 4, gpus: 0.5}}\n  {SPACE}"
    planned = plan(section, "resources: {gpus: 1}")
    assert messages_of(planned) == []
    definition = sweep_plan(planned, sweep_of(planned)).definition
    assert (definition.ray_cpus, definition.ray_gpus) == (4, 0.5)


# The plan of a trial's run: its values, its caps, its checkpoints, its share of the machine.

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
def sixteen_cores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of that size, and a small job as working folder: a plan reads all of it."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)


def trial_plan(tmp_path: Path, launching: Launching, reports: int = 0, **spec: Any) -> Plan:
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
    plan = trial_plan(tmp_path, launching())
    assert (plan.run_id, plan.spec.name) == ("digits-1-t007", "digits")
    assert plan.spec.args.argv == ("--lr", "0.00123")
    assert plan.spec.env["SEED"] == "2"


def test_a_trial_is_held_to_its_cap(tmp_path: Path) -> None:
    plan = trial_plan(tmp_path, launching(cap_seconds=90.9), limits={"max_runtime": "1 h"})
    assert plan.spec.limits.max_runtime == 90


def test_trials_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    plan = trial_plan(tmp_path, launching(), checkpoints={"uri": str(tmp_path / "kept")})
    assert plan.spec.checkpoints.uri == f"{tmp_path / 'kept'}/digits-1-t007/"


def test_a_run_that_goes_on_from_a_rung_knows_what_was_reported_before(tmp_path: Path) -> None:
    plan = trial_plan(tmp_path, launching(until=4, resumes="digits-1-t007-1"), reports=2)
    rules = plan.context.trial
    assert rules is not None
    assert (rules.trial, rules.until, rules.reports, rules.position) == (7, 4, 2, 44.0)
    assert (plan.context.resume_run, plan.context.resume_from) == (
        "digits-1-t007-1",
        "/checkpoints",
    )


def test_a_run_that_begins_anew_counts_from_nothing(tmp_path: Path) -> None:
    rules = trial_plan(tmp_path, launching(until=1), reports=2).context.trial
    assert rules is not None
    assert (rules.reports, rules.position, rules.rungs) == (0, None, (1, 2, 4))


def test_trials_that_run_at_once_share_the_cores_of_this_machine(tmp_path: Path) -> None:
    plan = trial_plan(tmp_path, launching(), resources={"processes": 2})
    launch = cloudtrain.render(plan).document["launches"][0]
    assert launch["env"]["OMP_NUM_THREADS"] == "2"
