"""No trial is lost or repeated on a simulated Ray cluster, which dies with its driver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.errors import CloudError, SpecError
from cloudtrain.spec.search_space import Uniform
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import drive, request_stop
from cloudtrain.sweeps.journal import Launching, Reported, RunEnded, SweepEvent, SweepFolder
from cloudtrain.sweeps.ray import trials as ray_trials
from cloudtrain.sweeps.ray.trials import Placement, RayRuns, RayTrials, WorkerLost
from cloudtrain.sweeps.state import SweepState, Trial, state_of
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain_wire.rungs import goes_on
from tests.support.function_trials import Killed, kill_at, learning

LAST = 4


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_trials, "RECONNECT_SECONDS", 0.0)


def sweep(root: Path, **changes: Any) -> SweepFolder:
    values: dict[str, Any] = {
        "trials": 6,
        "parallel": 2,
        "rungs": (1, 2),
        "eta": 2,
        "last_report": LAST,
        **changes,
    }
    definition = Definition(
        sweep_id="digits-1",
        name="digits",
        provider="local",
        engine="ray",
        metric="accuracy",
        goal="maximize",
        space={"lr": Uniform(1e-5, 1.0, log=True)},
        sampler="random",
        **values,
    )
    return SweepFolder.create(root, definition, {"spec.yaml": "", "plan.json": "{}"})


class Jobs(RayRuns):
    """Runs of trials, each a file, on a disk that outlives all processes."""

    def __init__(self, folder: SweepFolder) -> None:
        self.sweep = folder
        self.definition = folder.definition()
        self.folder = folder.path / "jobs"
        self.folder.mkdir(exist_ok=True)
        self.bad: set[int] = set()
        self.published: SweepState | None = None

    def publish(self, state: SweepState) -> None:
        self.published = state

    def is_behind(self, trial: Trial, report: int) -> bool:
        """Return whether a job ends itself with this report."""
        if self.published is None:
            return False
        definition = self.published.definition
        if report not in definition.rungs:
            return False
        rung = self.published.rungs[definition.rungs.index(report)]
        peers = [value for number, value in rung.items() if number != trial.number]
        value = learning(trial.parameters, report)
        return not goes_on(value, peers, definition.eta, definition.goal)

    def has_run(self, trial: Trial) -> bool:
        return (self.folder / trial.run).exists()

    def plan(self, trial: Trial) -> Any:
        if trial.number in self.bad:
            raise SpecError([])
        return SimpleNamespace(processes=1, gpus=0)

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return the unreported events of a run, which ends when it is asked to stop."""
        job = self.read(trial)
        sweep_events: list[SweepEvent] = [
            reported(trial, report) for report in range(trial.reports + 1, job["reports"] + 1)
        ]
        outcome = job.get("outcome") or ("stopped" if job["stop"] else "")
        return [*sweep_events, ended(trial, outcome)] if outcome else sweep_events

    def request_stop(self, trial: Trial) -> None:
        self.write(trial, {**self.read(trial), "stop": True})

    def was_asked_to_stop(self, trial: Trial) -> bool:
        return bool(self.read(trial)["stop"])

    def has_failed_by_itself(self, trial: Trial) -> bool:
        return bool(self.read(trial).get("cause"))

    def read(self, trial: Trial) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.folder / trial.run).read_text())
        return status

    def write(self, trial: Trial, job: dict[str, Any]) -> None:
        (self.folder / trial.run).write_text(json.dumps(job))


def reported(trial: Trial, report: int) -> Reported:
    return Reported(
        time=1.0, trial=trial.number, report=report, value=learning(trial.parameters, report)
    )


def ended(trial: Trial, outcome: Any) -> RunEnded:
    return RunEnded(
        time=1.0, trial=trial.number, run=trial.run, outcome=outcome, usd=0.0, seconds=1.0
    )


class Ray:
    """A cluster: each look at a worker lets it train until its next report."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.up = True
        self.breaks_after = 10**9
        """Reports."""
        self.loses: dict[str, int] = {}
        """Run -> after which report its worker dies."""
        self.placed: list[Placement] = []

    def connect(self) -> None:
        if not self.up:
            raise CloudError("Ray cannot be reached", transient=True)

    def disconnect(self) -> None:
        pass

    def place(self, placement: Placement) -> Iterator[None]:
        if self.breaks_after <= 0:
            raise RuntimeError("the head node is gone")
        assert placement.run not in [placed.run for placed in self.placed]
        self.placed.append(placement)
        state = state_of(
            self.jobs.definition, (event for event, _ in self.jobs.sweep.events_from())
        )
        trial = state.trials[placement.trial]
        assert trial.run == placement.run
        running = [trial for trial in state.trials if trial.state == "running"]
        assert len(running) <= self.jobs.definition.parallel
        return self.work(trial)

    def refusal(self, worker: Iterator[None]) -> None:
        next(worker, None)

    def work(self, trial: Trial) -> Iterator[None]:
        """Train; each step is a report."""
        assert not self.jobs.has_run(trial)
        self.jobs.write(trial, {"reports": trial.reports, "stop": False})
        for report in range(trial.reports + 1, LAST + 1):
            if self.breaks_after <= 0:
                raise WorkerLost("the head node is gone")
            self.breaks_after -= 1
            behind = self.jobs.is_behind(trial, report)
            outcome = {"outcome": "pruned"} if behind else {}
            self.jobs.write(trial, {**self.jobs.read(trial), "reports": report, **outcome})
            yield
            if behind or self.jobs.read(trial)["stop"]:
                return
            if self.loses.get(trial.run) == report:
                raise WorkerLost("its node is gone")
        self.jobs.write(trial, {**self.jobs.read(trial), "outcome": "completed"})


def run_to_the_end(folder: SweepFolder, ray: Ray | None = None) -> SweepState:
    ray = ray or Ray(Jobs(folder))
    return drive(folder, RayTrials(ray.jobs, ray), pause=lambda: None)


def killed_at(folder: SweepFolder, count: int) -> None:
    """Drive, and be killed right after that many events were written."""
    with suppress(Killed):
        kill_at(folder, count, run_to_the_end)


def assert_nothing_is_lost_or_done_twice(folder: SweepFolder) -> None:
    sweep_state = Sweep(folder).status()
    assert sweep_state.state == "succeeded"
    assert [trial.number for trial in sweep_state.trials] == [*range(6)]
    assert {trial.state for trial in sweep_state.trials} == {"completed", "pruned"}
    events = [event for event, _ in folder.events_from()]
    launched = Counter(event.run for event in events if isinstance(event, Launching))
    assert launched == Counter(event.run for event in events if isinstance(event, RunEnded))
    assert set(launched.values()) == {1}
    assert {path.name for path in (folder.path / "jobs").iterdir()} <= set(launched)
    reports = [(event.trial, event.report) for event in events if isinstance(event, Reported)]
    assert len(reports) == len(set(reports))
    pruned = [trial for trial in sweep_state.trials if trial.state == "pruned"]
    assert pruned
    assert all(trial.reports in sweep_state.definition.rungs for trial in pruned)
    for trial in sweep_state.trials:
        assert trial.curve == [
            learning(trial.parameters, report) for report in range(1, trial.reports + 1)
        ]


def test_successor_of_a_killed_driver_keeps_every_trial_and_rung(tmp_path: Path) -> None:
    never_killed = sweep(tmp_path / "never")
    expected = run_to_the_end(never_killed)
    assert_nothing_is_lost_or_done_twice(never_killed)
    # The other half: again and again, below.
    for count in range(1, sum(1 for _ in never_killed.events_from()), 2):
        folder = sweep(tmp_path / str(count))
        killed_at(folder, count)
        assert sum(1 for _ in folder.events_from()) >= count
        sweep_state = run_to_the_end(folder)
        assert_nothing_is_lost_or_done_twice(folder)
        assert [trial.parameters for trial in sweep_state.trials] == [
            trial.parameters for trial in expected.trials
        ]


def test_a_driver_that_is_killed_again_and_again_comes_to_the_end(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    for _ in range(200):
        if Sweep(folder).status().state == "succeeded":
            break
        killed_at(folder, sum(1 for _ in folder.events_from()) + 3)
    assert_nothing_is_lost_or_done_twice(folder)


def test_a_trial_whose_worker_is_lost_goes_on_in_another_run(tmp_path: Path) -> None:
    folder = sweep(tmp_path, rungs=())
    ray = Ray(Jobs(folder))
    ray.loses = {"digits-1-t001": 2}
    sweep_state = run_to_the_end(folder, ray)
    assert [run.run for run in sweep_state.trials[1].runs] == ["digits-1-t001", "digits-1-t001-2"]
    assert sweep_state.trials[1].runs[1].resumes == "digits-1-t001"
    assert {(trial.state, trial.reports) for trial in sweep_state.trials} == {("completed", LAST)}


def test_a_trial_whose_worker_is_lost_each_time_has_failed(tmp_path: Path) -> None:
    folder = sweep(tmp_path, rungs=())
    jobs = Jobs(folder)

    class Lossy(Ray):
        def work(self, trial: Trial) -> Iterator[None]:
            if trial.number == 2:
                raise WorkerLost("its node is gone")
            yield from super().work(trial)

    sweep_state = run_to_the_end(folder, Lossy(jobs))
    assert (sweep_state.trials[2].state, len(sweep_state.trials[2].runs)) == ("failed", 3)
    assert sweep_state.trials[2].reason == "its worker was lost 3 times in a row: its node is gone"
    assert Counter(trial.state for trial in sweep_state.trials)["completed"] == 5


def test_end_of_a_run_before_the_loss_of_its_worker_counts(tmp_path: Path) -> None:
    folder = sweep(tmp_path, rungs=(), parallel=3, trials=3)
    jobs = Jobs(folder)

    class Ending(Ray):
        def work(self, trial: Trial) -> Iterator[None]:
            marks = (
                {"outcome": "failed", "cause": "it raised"},
                {"stop": True},
                {"outcome": "completed"},
            )[trial.number]
            self.jobs.write(trial, {"reports": 1, "stop": False, **marks})
            raise WorkerLost("its node is gone")
            yield

    sweep_state = run_to_the_end(folder, Ending(jobs))
    assert [trial.state for trial in sweep_state.trials] == ["failed", "stopped", "completed"]
    assert [trial.reports for trial in sweep_state.trials] == [1, 1, 1]


def test_a_stop_ends_all_trials_also_those_that_have_not_begun(tmp_path: Path) -> None:
    folder = sweep(tmp_path, parallel=3, rungs=())
    jobs = Jobs(folder)

    class Full(Ray):
        """A cluster with room for one trial."""

        def work(self, trial: Trial) -> Iterator[None]:
            if trial.number > 0:
                while True:
                    yield
            for _ in super().work(trial):
                request_stop(folder)
                yield

    sweep_state = run_to_the_end(folder, Full(jobs))
    assert (sweep_state.state, [trial.state for trial in sweep_state.trials]) == (
        "stopped",
        ["stopped"] * 3,
    )
    assert [trial.reports for trial in sweep_state.trials] == [1, 0, 0]
    assert [jobs.has_run(trial) for trial in sweep_state.trials] == [True, False, False]


def test_a_stop_reaches_what_a_killed_driver_has_left_without_a_cluster(tmp_path: Path) -> None:
    folder = sweep(tmp_path, rungs=())
    killed_at(folder, 6)
    assert {trial.state for trial in Sweep(folder).status().trials} == {"running"}
    request_stop(folder)
    ray = Ray(Jobs(folder))
    ray.up = False
    sweep_state = run_to_the_end(folder, ray)
    assert (sweep_state.state, {trial.state for trial in sweep_state.trials}) == (
        "stopped",
        {"stopped"},
    )


def test_a_cluster_that_cannot_be_reached_ends_a_sweep_that_has_no_trial(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    ray = Ray(Jobs(folder))
    ray.up = False
    sweep_state = run_to_the_end(folder, ray)
    assert (sweep_state.state, sweep_state.reason, sweep_state.trials) == (
        "failed",
        "Ray cannot be reached",
        [],
    )


def test_broken_cluster_is_rejoined_and_given_up_without_progress(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "once")
    ray = Ray(Jobs(folder))
    ray.breaks_after = 5
    break_once = iter([None])

    def mend() -> None:
        ray.breaks_after = 10**9 if next(break_once, 0) is None else ray.breaks_after

    ray.disconnect = mend  # type: ignore[method-assign]
    run_to_the_end(folder, ray)
    assert_nothing_is_lost_or_done_twice(folder)

    broken = sweep(tmp_path / "always")
    ray = Ray(Jobs(broken))
    ray.breaks_after = 0
    sweep_state = run_to_the_end(broken, ray)
    assert (sweep_state.state, sweep_state.reason) == (
        "failed",
        "Ray broke 3 times in a row: RuntimeError: the head node is gone",
    )
    assert "running" not in {trial.state for trial in sweep_state.trials}


def test_values_that_make_no_job_are_refused_before_ray_hears_of_them(tmp_path: Path) -> None:
    folder = sweep(tmp_path, rungs=())
    ray = Ray(Jobs(folder))
    ray.jobs.bad = {1, 4}
    sweep_state = run_to_the_end(folder, ray)
    assert [trial.number for trial in sweep_state.trials if trial.state == "failed"] == [1, 4]


@pytest.mark.parametrize(
    ("changes", "lent"),
    [({}, (1, 0)), ({"ray_cpus": 4, "ray_gpus": 0.5}, (4, 0.5)), ({"ray_gpus": 0.0}, (1, 0.0))],
)
def test_a_trial_gets_the_cpus_and_parts_of_gpus_that_the_sweep_says(
    changes: dict[str, Any], lent: tuple[float, float], tmp_path: Path
) -> None:
    folder = sweep(tmp_path, **changes)
    ray = Ray(Jobs(folder))
    run_to_the_end(folder, ray)
    assert {(placed.cpus, placed.gpus) for placed in ray.placed} == {lent}
