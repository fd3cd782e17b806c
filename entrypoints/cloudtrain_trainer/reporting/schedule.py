"""Report once how often a loop will evaluate and save, for the forecast of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtrain_launcher.events import Schedule
from cloudtrain_trainer.data.streams import Stream

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop


def schedule(loop: Loop) -> Schedule:
    """Return the event, as if no `--patience` or `--target-accuracy` ended the run earlier."""
    options = loop.options
    data = loop.task.validation
    batch = loop.batches.batch_size
    event = Schedule(step_samples=batch, evaluations=0 if data is None else _evaluations(loop))
    if data is not None and not isinstance(data, Stream):
        event = event.replace(evaluation_samples=len(data))
    if options.checkpoint_every_steps is not None:
        event = event.replace(checkpoint_steps=options.checkpoint_every_steps)
    return event.replace(checkpoint_seconds=float(options.checkpoint_every))


def _evaluations(loop: Loop) -> int:
    """Return the evaluations of a run: at ends of epochs, every N steps, and at the end."""
    last = loop.steps
    epoch = max(1, loop.batches.samples_per_epoch // loop.batches.batch_size)
    ends = epoch * loop.options.eval_every
    every = loop.options.eval_every_steps
    count = 1 + _multiples(ends, last)
    return (
        count
        if every is None
        else count + _multiples(every, last) - _multiples(math.lcm(ends, every), last)
    )


def _multiples(number: int, below: int) -> int:
    """Return how many multiples of a number there are from 1."""
    return max(0, below - 1) // number
