"""The time of a rank's steps by activity, as the trainer measures it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from cloudtrain_trainer.reporting.step_times import STRIDE, StepClock, TimeLine
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.groups import StartGroup


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


PHASES = StepClock.PHASES


class Ddp:
    """A model whose logger has seen a wait of 0.5 s in each step."""

    def __init__(self) -> None:
        self.logger = self

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        return SimpleNamespace(ints_map={"backward_comm_time": 5e8})

    def parameters(self) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.zeros(1_000_000))]


def steps(clock: Clock, steps: StepClock, count: int) -> None:
    """Steps of 1 s data, 3 s compute, 0.25 s optimizer, and 0.25 s between them."""
    for _ in range(count):
        steps.begin_step()
        clock.now += 1
        steps.enter("compute")
        clock.now += 3
        steps.enter("optimizer")
        clock.now += 0.25
        steps.end_step()
        clock.now += 0.25


def test_the_phases_add_up_to_the_time_that_has_passed() -> None:
    clock = Clock()
    made = StepClock(clock=clock)
    made.watch(Ddp())
    steps(clock, made, 2)
    with made.during("evaluation"), made.during("saving"):
        clock.now += 2
    event = made.event(10, 64)
    phases = {
        "data": 2,
        "compute": 5,
        "communication": 1,
        "optimizer": 0.5,
        "saving": 2,
        "evaluation": 0,
        "other": 0.5,
    }
    assert {name: getattr(event, name) for name in PHASES} == phases
    assert event.wall == sum(phases.values()) == 11
    assert (event.step, event.steps, event.samples, event.message_mb) == (10, 2, 128, 4.0)


def test_reports_are_due_at_the_first_step_and_later_ever_more_rarely() -> None:
    clock = Clock()
    made = StepClock(clock=clock)
    reports = []
    for _ in range(2000):
        steps(clock, made, 1)
        if made.due():
            reports.append(clock.now)
            made.event(1, 1)
    pauses = [later - earlier for earlier, later in pairwise(reports)]
    assert reports[0] == 104.5
    assert pauses[0] == 4.5
    assert 60 <= pauses[-1] < 70


def test_the_time_without_a_core_is_reported_since_the_last_report() -> None:
    clock = Clock()
    delays = iter([7.0, 7.5, 9.0])
    made = StepClock(clock=clock, run_delay=lambda: next(delays))
    steps(clock, made, 1)
    assert [made.event(1, 1).run_delay, made.event(1, 1).run_delay] == [0.5, 1.5]
    unknown = StepClock(clock=clock, run_delay=lambda: None).event(1, 1)
    assert "run_delay" not in unknown.to_json(), (
        "a system that does not tell it has not said that there is none"
    )


class Marks:
    """Marks in the stream of a GPU, which is at the host's time."""

    def __init__(self, clock: Clock, passed: Callable[[], bool]) -> None:
        self.clock = clock
        self.passed = passed
        self.at = 0.0

    def record(self) -> None:
        self.at = self.clock.now

    def query(self) -> bool:
        return self.passed()

    def elapsed_time(self, end: Marks) -> float:
        return 2000 * (end.at - self.at)  # the GPU is slower than its host


def test_some_gpu_steps_are_measured_on_its_time_line_without_a_wait() -> None:
    clock = Clock()
    passed = False
    made_events = list[Marks]()

    def event() -> Marks:
        made_events.append(Marks(clock, lambda: passed))
        return made_events[-1]

    made = StepClock(TimeLine(event), clock=clock)
    made.watch(Ddp())
    steps(clock, made, 2 * STRIDE)
    assert len(made_events) == 2 * 4, "two steps were marked"
    first = made.event(14, 1)
    assert (first.data, first.compute) == (14, 42 - 7), (
        "the GPU has passed no mark: what the host saw"
    )
    passed = True
    steps(clock, made, STRIDE)
    with made.during("saving"):
        clock.now += 3
    interval = made.event(21, 1)
    assert interval.wall == 7 * 4.5 + 3
    total = sum(getattr(interval, name) for name in PHASES)
    assert total == pytest.approx(interval.wall)
    assert interval.saving == 3
    assert interval.compute == pytest.approx(31.5 * 3 / 4.25 - 3.5)
    assert interval.communication == 3.5


def test_a_run_reports_all_its_time(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    """All steps are in the events of the rank, and no time is counted twice."""
    loop = make_loop("--max-steps", "60", "--checkpoint-every-steps", "20")
    assert loop.run() == "succeeded"
    lines = [line for line in capfd.readouterr().out.splitlines() if '"type":"step_times"' in line]
    events = [json.loads(line.removeprefix("::cloudtrain:: ")) for line in lines]
    assert sum(event["steps"] for event in events) == 60
    assert events[0]["warm_up"]
    for event in events:
        assert sum(event[phase] for phase in PHASES) == pytest.approx(event["wall"], abs=1e-4)
    for phase in ("data", "compute", "optimizer", "saving", "evaluation"):
        assert sum(event[phase] for event in events) > 0, phase
    waited, computed = (
        sum(event[phase] for event in events) for phase in ("communication", "compute")
    )
    assert waited < 0.2 * computed, "it is alone"


def sleep_on_rank_1(rank: int) -> None:
    """Have each step of rank 1 take 30 ms more, in the forward pass of its first layer."""

    def sleep(module: torch.nn.Module, _: object) -> None:
        if isinstance(module, torch.nn.Conv2d) and module.in_channels == 1 and module.training:
            time.sleep(0.03)

    if rank == 1:
        register_module_forward_pre_hook(sleep)


def test_ddp_tells_the_wait_for_a_slower_rank_from_its_own_work(group: StartGroup) -> None:
    started = group(2, "--max-steps 40", before=f"{__name__}:sleep_on_rank_1")
    started.succeed()
    waits = []
    slept = 0.0
    for rank in range(2):
        events = [event for event in started.events("step_times", rank) if not event.get("warm_up")]
        waits.append(sum(event["communication"] for event in events))
        slept = sum(event["steps"] for event in events) * 0.03
        own_work = sum(event["compute"] for event in events)
    assert own_work > slept > 0, "the sleep of rank 1 is its own work"
    assert waits[0] > waits[1] + 0.3
    assert started.events("step_times")[-1]["message_mb"] > 0


def own_program() -> None:
    """A program without the trainer: slow batches, a checkpoint, two epochs."""
    import cloudtrain_job

    def loader() -> Any:
        for number in range(30):
            time.sleep(0.03)
            yield number

    for _ in range(2):
        assert list(cloudtrain_job.timed(loader())) == list(range(30))
        with cloudtrain_job.activity("saving"):
            time.sleep(0.1)
    os._exit(0)


def test_two_lines_report_the_same_of_any_program(group: StartGroup) -> None:
    started = group(1, program=f"{__name__}:own_program")
    assert started.wait() == [0], started.output()
    events = started.events("step_times")
    assert 30 < sum(event["steps"] for event in events) <= 60, "the last half second may be missing"
    assert [event.get("warm_up", False) for event in events][:3] == [True, True, False]
    for event in events:
        assert sum(event.get(phase, 0) for phase in PHASES) == pytest.approx(
            event["wall"], abs=1e-4
        )
    assert sum(event["data"] for event in events) > 30 * 0.03
    assert sum(event["saving"] for event in events) > 0.1
    assert "communication" not in events[-1]


def own_program_on_ranks() -> None:
    """A program of two ranks, whose model is a DistributedDataParallel."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import cloudtrain_job

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1000, 300))
    for batch in cloudtrain_job.timed(torch.randn(40, 4, 1000), model):
        model(batch).sum().backward()
    os._exit(0)


def test_a_program_of_ones_own_reports_how_much_its_gradients_are(group: StartGroup) -> None:
    """Without their size, the cause of a wait is unknown."""
    started = group(2, program=f"{__name__}:own_program_on_ranks")
    assert started.wait() == [0, 0], started.output()
    events = started.events("step_times")
    assert {event["message_mb"] for event in events} == {1.201}
