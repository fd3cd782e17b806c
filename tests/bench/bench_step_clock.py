"""What it costs a step of the trainer that its time is told apart: CPU time of the clock beside
that of a step.

One process, so that nothing waits; DDP around the model, whose own measurement is looked at as with
more ranks. CPU time of this thread, the least of several rounds: other work on the machine does not
count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]

if TYPE_CHECKING:
    from cloudtrain_trainer.reporting.step_times import StepClock
    from cloudtrain_trainer.training.step import Step

ROUNDS = 7


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    from cloudtrain_trainer.reporting.step_times import REPORT_SECONDS
    from cloudtrain_trainer.reporting.waiting import SAMPLE_SECONDS, DdpWaiting
    from cloudtrain_trainer.tasks import Draw

    step = digits()
    batch = step.task.train[Draw(0, list(range(32)))]
    clock = step.clock
    waiting = step.clock.waiting
    assert isinstance(waiting, DdpWaiting)
    costs = {
        "step": least(lambda: step.train_step(iter([batch]), 10, 1000), 60),
        "phases": least(lambda: phases(clock), 5000),
        "look": least(waiting.latest, 500),
        "report": least(lambda: report(clock), 300),
    }
    looks = min(1.0, costs["step"] / SAMPLE_SECONDS)
    share = (costs["phases"] + looks * costs["look"]) / costs["step"] + costs[
        "report"
    ] / REPORT_SECONDS[0]
    shown = ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in costs.items())
    print(f"CPU time: {shown}: {share:.2%} of a step")
    if options.json:
        options.json.write_text(json.dumps({**costs, "share": share}, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(0)


def digits() -> Step:
    """The trainer's smallest task under ddp, with 32 images per step."""
    import torch

    from cloudtrain_trainer import strategies, tasks
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.ranks import Ranks
    from cloudtrain_trainer.training.step import Step

    torch.set_num_threads(1)
    options = parse(["--strategy", "ddp", "--batch-size", "32"])
    strategy = strategies.build(Ranks(), options)
    strategy.start()
    step = Step(tasks.build("digits", 0), strategy, options, 32)
    step.wrapped.train()
    return step


def phases(clock: StepClock) -> None:
    """All that the loop does for the clock in one step."""
    clock.begin_step()
    clock.enter("data")
    clock.enter("compute")
    clock.waiting.begin()
    clock.enter("communication")
    clock.enter("optimizer")
    clock.end_step()
    with clock.during("communication"):
        pass
    clock.due()


def report(clock: StepClock) -> None:
    """The event of some steps, as a line."""
    from cloudtrain_job import event_line

    clock.steps = 10
    event = clock.take(1, 32)
    event_line(event.type, **event.fields())


def least(act: Callable[[], object], count: int) -> float:
    """Seconds of CPU time for one call, in the cheapest of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(count):
            act()
        rounds.append((time.thread_time() - began) / count)
    return min(rounds)


if __name__ == "__main__":
    sys.exit(main())
