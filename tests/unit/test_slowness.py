"""Slow training: step times by activity, the verdict from them, and `cloudtrain diagnose`."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import click
import pytest

from cloudtrain.api.run import Run
from cloudtrain.cli.run_end import report
from cloudtrain.diagnosis.slowness import Setup, Slowness, setup_of, why_slow
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from cloudtrain.runs.step_times import KEPT_INTERVALS, Mean, StepTimesHistory, Utilization
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.events import StepTimes, Usage
from tests.support.in_process import call
from tests.support.samples import BORN, write_events


@dataclass
class Made:
    """Steps of some ranks, each with its seconds of work; the others wait for the slowest, and then
    for the message.
    """

    ranks: int = 2
    data: float = 0.001
    compute: float = 0.1
    message: float = 0.003
    message_mb: float = 0.4
    slower: dict[tuple[int, str], float] = field(default_factory=dict)
    """Further seconds of a rank in a phase."""
    held_up: tuple[float, ...] = ()
    """By rank: further seconds of a step without a core; every second interval those of the other
    end.
    """
    saving: tuple[int, float] = (0, 0.0)
    """Number of intervals between saves, and seconds of each."""
    apart: int = 0
    """Number of steps that each rank reports later than the rank before it."""
    noise: float = 0.15
    intervals: int = 20
    steps: int = 20
    seed: int = 0

    def history(self) -> StepTimesHistory:
        random_ = random.Random(self.seed)
        history = StepTimesHistory()
        for number in range(1, self.intervals + 1):
            work = [self._work(rank, random_) for rank in range(self.ranks)]
            held_up = [
                self.steps * seconds_per_step
                for seconds_per_step in self.held_up[:: 1 if number % 2 else -1]
            ] or [0.0] * self.ranks
            for spent, seconds in zip(work, held_up, strict=True):
                spent["compute"] += seconds
            slowest = max(sum(phases.values()) for phases in work)
            save = self.saving[1] if self.saving[0] and number % self.saving[0] == 0 else 0.0
            for rank, spent in enumerate(work):
                waited = (
                    slowest
                    - sum(spent.values())
                    + (self.message * self.steps if self.ranks > 1 else 0.0)
                )
                phases = {**spent, "communication": waited, "saving": save}
                event = StepTimes(time=1.0, rank=rank, steps=self.steps, wall=sum(phases.values()))
                event = event.replace(run_delay=held_up[rank]) if self.held_up else event
                step = number * self.steps + rank * self.apart
                history.add(event.replace(step=step, message_mb=self.message_mb, **phases))
        return history

    def _work(self, rank: int, random_: random.Random) -> dict[str, float]:
        phases = {"data": self.data, "compute": self.compute, "optimizer": 0.002, "other": 0.001}
        for (who, phase), seconds in self.slower.items():
            if who == rank:
                phases[phase] += seconds
        return {
            phase: seconds * self.steps * random_.uniform(1 - self.noise, 1 + self.noise)
            for phase, seconds in phases.items()
        }


def verdict(made: Made, **setup: object) -> Slowness:
    return why_slow(made.history(), Setup(ranks=made.ranks, **setup))  # type: ignore[arg-type]


def test_too_short_trainer_run_is_not_advised_to_report_its_times() -> None:
    short = Made(intervals=1, steps=4).history()
    slowness = why_slow(short, Setup(trainer=False))
    assert (slowness.sentence, slowness.change) == (
        "not known: only 4 steps after the first ones",
        "",
    )
    fast = Made(intervals=1, steps=20, compute=0.001, message=0.0).history()
    assert "took less than a second" in why_slow(fast, Setup()).sentence
    nothing = why_slow(StepTimesHistory(), Setup(trainer=True))
    assert (nothing.sentence, nothing.change) == ("not known: no step times were reported", "")
    assert "for batch in timed(loader)" in why_slow(StepTimesHistory(), Setup(trainer=False)).change


CASES = {
    "input": Made(data=0.06),
    "communication": Made(compute=0.03, message=0.06, message_mb=200.0),
    "straggler": Made(slower={(1, "compute"): 0.06}),
    "too-small": Made(compute=0.002, message=0.003),
    "saving": Made(saving=(5, 4.0)),
    "compute": Made(),
}


@pytest.mark.parametrize("cause", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_each_cause_is_found_whatever_the_noise(cause: str, seed: int) -> None:
    made = CASES[cause]
    made.seed = seed
    slowness = verdict(made)
    assert slowness.cause == cause, slowness
    assert slowness.confidence > 0.7
    assert slowness.is_slow == (cause != "compute")
    assert bool(slowness.change) == slowness.is_slow
    assert slowness.is_slow or slowness.gain == 1


def test_what_was_not_measured_is_said() -> None:
    history = StepTimesHistory()
    for rank in range(2):
        history.add(StepTimes(time=1.0, rank=rank, steps=20, wall=4.0, data=1.0, compute=3.0))

    slowness = why_slow(history, Setup(ranks=2, trainer=False))
    assert slowness.cause == "input"
    assert slowness.sentence.endswith("; communication: not measured")
    assert "not measured" not in why_slow(history, Setup(trainer=False)).sentence
    assert "not measured" not in verdict(Made()).sentence


def test_the_wait_of_many_ranks_for_one_is_the_straggler_and_no_communication() -> None:
    slowness = verdict(Made(ranks=8, slower={(5, "compute"): 0.1}, message_mb=500.0))
    assert (slowness.cause, slowness.rank, slowness.phase) == ("straggler", 5, "compute")
    assert slowness.share == pytest.approx(0.5, abs=0.1)
    assert "rank 5" in slowness.sentence
    assert slowness.gain == pytest.approx(2, rel=0.2)


def test_ranks_that_wait_for_each_other_in_turn_with_enough_to_do_are_healthy() -> None:
    assert verdict(Made(noise=0.5, intervals=40)).cause == "compute"


def test_a_rank_whose_core_other_work_has_is_no_straggler() -> None:
    def always(delay: float | None) -> Slowness:
        history = StepTimesHistory()
        for number in range(1, 21):
            for rank, busy in enumerate((5.0, 9.0)):
                phases = {"compute": busy, "communication": 9.5 - busy}
                event = StepTimes(time=1.0, rank=rank, steps=20, wall=9.5).replace(
                    step=20 * number, **phases
                )
                history.add(event if delay is None or rank == 0 else event.replace(run_delay=delay))
        return why_slow(history, Setup(ranks=2))

    assert (always(None).cause, always(0.5).cause) == ("straggler", "straggler")
    held_up = always(4.0)
    assert (held_up.cause, held_up.rank, held_up.share) == ("other-work", 1, 0.421)
    assert "end what else runs there" in held_up.change


def test_rank_with_a_core_is_late_by_itself_in_small_steps() -> None:
    small = Made(compute=0.005, slower={(1, "compute"): 0.008})
    assert verdict(small).cause == "too-small", "it may be its machine's scheduling"
    small.held_up = (0.0001, 0.0001)
    assert (verdict(small).cause, verdict(small).rank) == ("straggler", 1)
    assert verdict(Made(compute=0.002, held_up=(0.001, 0.002))).cause == "too-small"


def test_a_gpu_that_is_idle_for_no_other_reason_has_too_small_steps() -> None:
    idle = Utilization(gpus={(0, "0"): Mean(20.0, 1)})
    slowness = why_slow(Made(ranks=1).history(), Setup(has_gpus=True), idle)
    assert (slowness.cause, slowness.share) == ("too-small", 0.8)
    waiting = why_slow(Made(ranks=1, data=0.3).history(), Setup(has_gpus=True), idle)
    assert waiting.cause == "input"


def test_without_step_times_the_launcher_says_how_busy_gpus_were() -> None:
    idle = Utilization(gpus={(0, "0"): Mean(20.0, 1)})
    slowness = why_slow(StepTimesHistory(), Setup(trainer=False), idle)
    assert "20 %" in slowness.sentence
    assert "timed(loader)" in slowness.change
    busy = Utilization(gpus={(0, "0"): Mean(95.0, 1)})
    assert why_slow(StepTimesHistory(), Setup(trainer=False), busy).cause == "compute"
    assert why_slow(StepTimesHistory(), Setup(trainer=False)).cause == "unknown"


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


def slow_run(store: RunStore, *, intervals: int = 20, data: float = 6.0, **spec: Any) -> RunFolder:
    """Write a run of two ranks that wait for data these seconds in every ten."""
    plan = {"provider": "local", "spec": {"name": "digits", **spec}}
    folder = store.create("a-1", {"plan.json": json.dumps(plan)})
    write_events(
        folder,
        {**BORN, "nodes": 1, "processes": 2},
        {"type": "node_started", "time": 100.0, "node": 0},
    )
    for number in range(intervals):
        times = {
            "type": "step_times",
            "time": 110.0 + 10 * number,
            "step": 40 * number,
            "steps": 40,
            "wall": 10.0,
        }
        phases = {
            "data": data,
            "compute": 9.5 - data,
            "communication": 0.5,
            "optimizer": 0.0,
            "other": 0.0,
        }
        write_events(
            folder, *({**times, **phases, "rank": rank, "seq": number} for rank in range(2))
        )
    write_events(folder, {"type": "ended", "time": 400.0, "state": "succeeded"})
    return folder


def test_diagnose_names_the_cause_its_gain_and_the_setting(home: RunStore) -> None:
    slow_run(home)
    assert call("diagnose", "a-1").out.splitlines() == [
        "a-1 succeeded in 5 min: nothing failed",
        "  speed       training waits for its data 60% of the time",
        "  gain        without it up to 2.5x as fast; confidence 95%",
        "  time        data 60%, compute 35%, communication 5%",
        (
            "  change      --workers N (more loader processes per rank), or data that is cheaper to"
            " read and decode"
        ),
    ]


def test_diagnose_as_json_has_the_shares(home: RunStore) -> None:
    slow_run(home, entrypoint="train.py")
    slowness = json.loads(call("diagnose", "a-1", "--json").out)["slowness"]
    assert (slowness["cause"], slowness["share"], slowness["gain"]) == ("input", 0.6, 2.5)
    assert slowness["shares"]["compute"] == 0.35
    assert "num_workers" in slowness["change"], "a script of one's own has no --workers"


@pytest.mark.parametrize(("argv", "steps"), [(["--accumulate", "2"], 2), (["--accumulate=x"], 1)])
def test_advice_counts_from_the_accumulated_steps_of_the_run(
    home: RunStore, argv: list[str], steps: int
) -> None:
    folder = home.create("b-1", {"plan.json": json.dumps({"spec": {"args": {"argv": argv}}})})
    assert setup_of(folder, RunState(run_id="b-1")).accumulate == steps


@pytest.mark.parametrize(
    ("intervals", "data", "is_told"),
    [(20, 6.0, True), (5, 6.0, False), (20, 0.5, False), (1, 6.0, False)],
)
def test_the_report_at_the_end_says_so_in_one_line(
    home: RunStore, capsys: pytest.CaptureFixture[str], intervals: int, data: float, is_told: bool
) -> None:
    """Not of a run that was short or healthy."""
    folder = slow_run(home, intervals=intervals, data=data)
    run = Run(folder)
    with click.Context(click.Command("attach")):
        report(run, run.last_known())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  slow ")]
    hints = ["  slow        training waits for its data 60% of the time; cloudtrain diagnose a-1"]
    assert lines == (hints if is_told else [])
