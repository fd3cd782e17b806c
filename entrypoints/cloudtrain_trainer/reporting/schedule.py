"""How often a training loop is going to evaluate and save: told once, so that a forecast knows it
before it is seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtrain_launcher.events import Schedule
from cloudtrain_trainer.data.streams import Stream

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop


def schedule(loop: Loop) -> Schedule:
    """The event. Evaluations are those of a run that no `--patience` and no `--target-accuracy`
    ends earlier.
    """
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
    """How many the whole run has: at the ends of epochs, every so many steps, and after the last
    step.
    """
    last = loop.steps
    epoch = max(1, loop.batches.samples_per_epoch // loop.batches.batch_size)
    ends = epoch * loop.options.eval_every
    every = loop.options.eval_every_steps
    found = 1 + _multiples(ends, last)
    return (
        found
        if every is None
        else found + _multiples(every, last) - _multiples(math.lcm(ends, every), last)
    )


def _multiples(number: int, below: int) -> int:
    """How many there are from 1."""
    return max(0, below - 1) // number
