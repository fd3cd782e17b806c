"""Sweeps that Ray Tune cannot run are refused at their line with the reason, even without Ray."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.planning.tuned import sweep_of
from cloudtrain.sweeps import rules
from cloudtrain.sweeps.planning import planned as planned_sweep
from cloudtrain.sweeps.rules import as_checked_here
from tests.unit.test_sweep_rules import AWS, SPACE, messages_of, plan

RAY = f"trials: 3\n  engine: ray\n  {SPACE}"


@pytest.fixture
def has_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Ray as installed or missing."""
    monkeypatch.setattr(rules, "find_spec", lambda _: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.usefixtures("has_ray")
def test_ray_runs_trials_as_processes_of_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages_of(plan(RAY)) == []
    at = "job.yaml:6:3: sweep.engine: "
    message = "runs trials on machines of its own cluster, not as jobs of SageMaker"
    assert f"{at}{message}" in messages_of(plan(RAY, AWS, provider="aws"))
    message = "lends trials some GPUs and cores of a machine, and jobs of Docker would see them all"
    assert f"{at}{message}" in messages_of(
        plan(RAY, "image: {docker: trainer:1}", provider="docker")
    )
    rehearsed = replace(plan(RAY, AWS, provider="aws"), host=plan(RAY).host)
    message = "is no part of what runs on SageMaker, and cannot be rehearsed for it"
    assert f"{at}{message}" in messages_of(rehearsed)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")
    assert messages_of(plan(RAY)) == []
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    message = (
        "needs its driver on a node of the cluster, and RAY_ADDRESS is ray://head:10001, a way in"
        " from outside"
    )
    assert messages_of(plan(RAY)) == [f"{at}{message}"]


def test_ray_tune_is_needed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "find_spec", lambda name: name not in ("pandas", "pyarrow") or None)
    assert messages_of(plan(RAY)) == [
        "job.yaml:6:3: sweep.engine: needs Ray Tune, and this is not installed: pandas, pyarrow"
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
    definition = planned_sweep(planned, sweep_of(planned)).definition
    assert (definition.ray_cpus, definition.ray_gpus) == (4, 0.5)
