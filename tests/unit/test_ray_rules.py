"""Sweeps that Ray Tune cannot run are refused at their line with the reason, even without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.planning.tuned import sweep_of
from cloudtrain.sweeps.planning import planned as planned_sweep
from cloudtrain.sweeps.ray import rules as ray_rules
from cloudtrain.sweeps.ray.rules import as_checked_here
from tests.unit.test_bad_sweeps import mistakes
from tests.unit.test_sweep_rules import AWS, SPACE, messages_of, plan

RAY = f"trials: 3\n  engine: ray\n  {SPACE}"


@pytest.fixture
def has_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Ray as installed or missing."""
    monkeypatch.setattr(ray_rules, "find_spec", lambda _: True)
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
    monkeypatch.setattr(
        ray_rules, "find_spec", lambda name: name in ("ray", "requests", "fsspec") or None
    )
    assert messages_of(plan(RAY)) == [
        "job.yaml:6:3: sweep.engine: needs Ray Tune, and this is not installed: pandas, pyarrow"
    ]


@pytest.mark.usefixtures("has_ray")
def test_gpus_of_a_ray_cluster_are_not_looked_up_on_this_machine() -> None:
    planned = plan(RAY, "resources: {gpus: 4}")
    assert (planned.gpus, as_checked_here(planned).gpus) == (4, 0)
    alone = plan(f"trials: 3\n  {SPACE}", "resources: {gpus: 4}")
    assert as_checked_here(alone) is alone


@pytest.mark.parametrize(
    ("space", "section", "job", "message"),
    [
        (
            "{lr: [1, 2]}",
            "trials: 2",
            "resources: {nodes: 2}",
            (
                "job.yaml:3",
                "sweep.engine",
                "runs each trial on one node, but resources.nodes is 2",
            ),
        ),
        (
            "{lr: [1, 2]}",
            "early_stopping: {max: 9, promote: always}\n  trials: 2",
            "",
            (
                "job.yaml:5",
                "sweep.early_stopping.promote",
                "resumes trials, but Ray's ASHA can only end them",
            ),
        ),
        (
            "{resources.nodes: [1, 2]}",
            "trials: 2",
            "resources: {nodes: 1}",
            (
                "job.yaml:4",
                "sweep.space.resources.nodes",
                "is always 1 in a Ray cluster",
            ),
        ),
        (
            "{lr: [1, 2]}",
            "trials: 2\n  ray: {gpus: 0.5}",
            "resources: {gpus: 2}",
            ("job.yaml:6", "sweep.ray.gpus", "gives a trial 0.5 GPUs, but resources.gpus is 2"),
        ),
        (
            "{lr: [1, 2]}",
            "trials: 2\n  ray: {gpus: 1.5}",
            "resources: {gpus: 2}",
            ("job.yaml:6", "sweep.ray.gpus", "expected whole GPUs or a part of one, got 1.5"),
        ),
    ],
)
def test_what_no_worker_of_ray_can_do_is_refused_at_its_line(
    space: str, section: str, job: str, message: tuple[str, ...], tmp_path: Path
) -> None:
    goal = "objective: {metric: val_loss, goal: minimize}"
    text = f"sweep:\n  {goal}\n  engine: ray\n  space: {space}\n  {section}\n{job}\n"
    assert [mistake[:3] for mistake in mistakes(tmp_path, text)] == [message]


@pytest.mark.usefixtures("has_ray")
def test_trials_may_share_a_gpu_and_have_cpus_of_their_own() -> None:
    section = f"trials: 3\n  engine: ray\n  ray: {{cpus: 4, gpus: 0.5}}\n  {SPACE}"
    planned = plan(section, "resources: {gpus: 1}")
    assert messages_of(planned) == []
    definition = planned_sweep(planned, sweep_of(planned)).definition
    assert (definition.ray_cpus, definition.ray_gpus) == (4, 0.5)


def test_what_ray_lends_plays_no_part_without_ray(tmp_path: Path) -> None:
    goal = "objective: {metric: val_loss, goal: minimize}"
    text = f"sweep:\n  {goal}\n  space: {{lr: [1, 2]}}\n  trials: 2\n  ray: {{cpus: 4}}\n"
    assert [mistake[1:3] for mistake in mistakes(tmp_path, text)] == [
        ("sweep.ray", "applies only to engine: ray")
    ]
