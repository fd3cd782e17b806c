"""`--measure`: what data and the exchange of gradients cost, by short windows of steps that leave
them out.

A timer adds up what overlaps; what a step saves without a part is what that part costs. Windows of
all kinds take turns, so that other work on the machine slows all of them, and medians count. The
weights are thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, count, islice, repeat
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from cloudtrain_job import emit_event
from cloudtrain_launcher.events import Windows

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop

ROUNDS = 7
WARM_UP_STEPS = 5
WINDOW_SECONDS = 0.5
"""About how long a window takes."""
MAX_STEPS = 50
"""Of a window."""
KINDS = {
    "full": (True, True),
    "cached_batch": (False, True),
    "no_messages": (True, False),
    "neither": (False, False),
}
"""Of windows: whether batches are loaded, and whether gradients are exchanged."""


def measure(loop: Loop) -> str:
    """Run the windows and report them; returns "succeeded", or "stopped" at a SIGTERM. Called by
    all ranks.
    """
    loop.step.wrapped.train()
    batches = chain.from_iterable(loop.batches.load(epoch, skip=0) for epoch in count())
    seconds = _window(loop, batches, WARM_UP_STEPS)
    loop.ranks.begin_training(loop.options.timeout)
    seconds = min(seconds, _window(loop, batches, WARM_UP_STEPS))
    steps = min(
        loop.ranks.all_gather(max(2, min(MAX_STEPS, int(WINDOW_SECONDS / max(seconds, 1e-6)))))
    )
    cached = list(islice(batches, loop.step.accumulation_steps))
    kinds = [kind for kind, (_, sends) in KINDS.items() if sends or loop.strategy.can_skip_messages]
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            loads, sends = KINDS[kind]
            source = batches if loads else chain.from_iterable(repeat(cached))
            taken[kind].append(_window(loop, source, steps, sends=sends))
        if loop.ranks.all_reduce_max(loop.stop.requested)()[0]:
            return "stopped"
    _report(loop, steps, taken)
    return "succeeded"


def _window(
    loop: Loop, batches: Iterator[tuple[Any, Any]], steps: int, *, sends: bool = True
) -> float:
    """Seconds per step of a window, on this rank; all ranks begin it together."""
    step = loop.step
    loop.ranks.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        with nullcontext() if sends else loop.strategy.accumulation_context(step.wrapped):
            step.train_step(batches, 0, loop.steps)
        loop.stop.step_done()
    if loop.device.type == "cuda":
        torch.cuda.synchronize(loop.device)
    return (time.perf_counter() - began) / steps


def _report(loop: Loop, steps: int, taken: dict[str, list[float]]) -> None:
    """Send the medians: of each round the slowest rank counts, and of steps without messages each
    rank by itself.
    """
    by_rank = loop.ranks.all_gather(taken)
    if loop.ranks.rank != 0:
        return
    each = {
        kind: list(map(max, zip(*(rank[kind] for rank in by_rank), strict=True))) for kind in taken
    }
    slowest = {kind: median(seconds) for kind, seconds in each.items()}
    alone = {
        str(rank): round(median(own["neither"]), 6)
        for rank, own in enumerate(by_rank)
        if "neither" in own
    }
    sent = loop.step.clock.message_bytes
    event = Windows(full=round(slowest.pop("full"), 6)).replace(
        full_each=[round(seconds, 6) for seconds in each["full"]],
        rounds=ROUNDS,
        steps=steps,
        samples=loop.batches.batch_size,
        **{kind: round(seconds, 6) for kind, seconds in slowest.items()},
        **({"alone_by_rank": alone} if len(alone) > 1 else {}),
        **({"message_mb": round(sent / 1e6, 3)} if sent else {}),
    )
    emit_event(event)
    saved = ", ".join(
        f"{kind.replace('_', ' ')} {seconds * 1e3:.1f} ms" for kind, seconds in slowest.items()
    )
    loop.ranks.log(f"measured steps of {event.full * 1e3:.1f} ms; {saved}")
