"""The time of a run's ranks by activity, added up from events."""

from __future__ import annotations

import random

from cloudtrain.runs.fold import fold
from cloudtrain.runs.state import RunState
from cloudtrain.runs.step_times import KEPT_INTERVALS, StepTimesHistory, Utilization
from cloudtrain_launcher.events import StepTimes, Usage


def times(rank: int, step: int, steps: int = 10, **phases: float) -> StepTimes:
    event = StepTimes(time=1.0, rank=rank, steps=steps, wall=sum(phases.values()))
    return event.replace(step=step, samples=steps * 32, **phases)


def test_sums_of_each_rank_omit_first_steps_and_time_after_the_last() -> None:
    state = RunState(run_id="a-1")
    first = times(0, 1, steps=1, compute=30.0).replace(warm_up=True)
    last = times(0, 20, steps=0, saving=5.0)
    fold(
        "a-1",
        [first, times(0, 10, data=1.0, compute=3.0), times(0, 20, data=2.0, compute=2.0), last],
        state,
    )
    history = state.step_times
    assert history.totals()[0].seconds == {"data": 3.0, "compute": 5.0}
    assert (history.totals()[0].wall, history.steps) == (8.0, 20)
    assert history.warm_up[0].wall == 30.0
    assert history.totals()[0].share("data") == 3 / 8


def test_a_long_run_is_kept_in_bounded_memory_and_its_sums_stay_whole() -> None:
    history = StepTimesHistory()
    whole = 0.0
    generator = random.Random(0)
    for number in range(1, 5001):
        for rank in range(2):
            seconds = generator.random()
            whole += seconds
            history.add(times(rank, number * 10, compute=seconds))
    assert KEPT_INTERVALS <= len(history.intervals()) <= 2 * KEPT_INTERVALS
    assert abs(sum(sums.wall for sums in history.totals().values()) - whole) < 1e-6
    assert history.totals()[1].steps == 50_000
    assert all(set(interval) == {0, 1} for interval in history.intervals())


def test_how_busy_gpus_were_is_a_mean_over_all_measurements() -> None:
    use = Utilization()
    assert use.gpu_percent is None
    use.add(
        Usage(
            time=1.0,
            node=0,
            gpu_percent={"0": 90.0, "1": 10.0},
            rank_cpu_percent={"0": 100.0},
            cores=8,
        )
    )
    use.add(Usage(time=2.0, node=1, gpu_percent={"0": 50.0, "1": float("nan")}))
    assert use.gpu_percent == 50.0
