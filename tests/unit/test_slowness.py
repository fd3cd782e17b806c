"""The verdict on why a run is slow, on step times that were made up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from cloudtrain.diagnosis.slowness import Setup, Slowness, why_slow
from cloudtrain.runs.step_times import Mean, StepTimesHistory, Utilization
from cloudtrain_launcher.events import StepTimes


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
