"""Which changes make a training fit into memory, from the cheapest on: `--strategy auto`. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cloudtrain_trainer import rules
from cloudtrain_trainer.memory.device import Device, Exceeded, Range, most_tensors, needed, verdict
from cloudtrain_trainer.options import Options

MAX_MICRO_BATCHES = 1024
"""Accumulation steps that are tried, in powers of two."""


@dataclass(frozen=True)
class Plan:
    """A training as it would run, and what a rank then takes."""

    strategy: str
    accumulate: int
    recompute: str
    held: dict[str, int]
    """Bytes of tensors at most, and of what: see `rehearsal.Held`."""
    needed: Range
    verdict: str
    """`fits`, `may not fit` or `does not fit`; empty where the device's memory is not known."""

    @property
    def flags(self) -> str:
        """As they are written on the command line."""
        parts = [f"--strategy {self.strategy}"]
        if self.accumulate > 1:
            parts.append(f"--accumulate {self.accumulate}")
        if self.recompute != "none":
            parts.append(f"--recompute {self.recompute}")
        return " ".join(parts)


Rehearse = Callable[[Options, int], Any]
"""(Options, a limit in bytes; 0: none) -> what a rank holds (`rehearsal.Held`). Raises `Refused`
and `Exceeded`.
"""


class Search:
    """Tries plans on one device, each once."""

    def __init__(self, rehearse: Rehearse, device: Device, ranks: int) -> None:
        self._rehearse = rehearse
        self._device = device
        self._ranks = ranks
        self._known: dict[tuple[str, int, str], Plan] = {}
        self._too_large: set[tuple[str, int, str]] = set()
        """What was given up as soon as it held too much."""

    def plan(self, options: Options, limit: int = 0) -> Plan:
        """What a rank takes with these options. Raises `Refused`; and `Exceeded` at more than
        `limit` bytes.
        """
        key = options.strategy, options.accumulate, options.recompute
        if key not in self._known:
            held = self._rehearse(options, limit)
            range_ = needed(held.peak, self._device.gpu, self._ranks)
            parts = {**vars(held), "activations": held.activations}
            self._known[key] = Plan(*key, parts, range_, verdict(range_, self._device.memory))
        return self._known[key]

    def fits(self, options: Options) -> bool:
        """Whether it surely fits, or nothing is known of the memory. Raises `Refused`."""
        key = options.strategy, options.accumulate, options.recompute
        if key in self._too_large:
            return False
        try:
            return self.plan(options, most_tensors(self._device, self._ranks)).verdict in (
                "fits",
                "",
            )
        except Exceeded:
            self._too_large.add(key)
            return False

    def cheapest(self, options: Options, local: int) -> tuple[Plan, bool]:
        """The first plan that fits, of `strategies`; else the one that takes least. And whether it
        fits.

        `local`: ranks per node. Raises `Refused` if none is possible.
        """
        tried: list[Options] = []
        for changed in strategies(options, self._ranks, local):
            fitting = self.smaller(changed)
            if fitting is not None:
                return fitting, True
            tried.append(replace(changed, accumulate=self._counts(changed)[-1]))
        if not tried:
            raise rules.Refused(
                "no strategy that auto chooses from works with these options: name one"
            )
        return min(map(self.plan, tried), key=lambda plan: plan.needed.expected), False

    def smaller(self, options: Options) -> Plan | None:
        """The first plan that fits with more and more accumulation steps, so smaller micro-batches;
        None if none does.

        Where the smallest micro-batch does not fit, no larger one is tried.
        """
        counts = self._counts(options)
        each = [replace(options, accumulate=count) for count in counts]
        if self.fits(each[0]):
            return self.plan(each[0])
        if len(each) == 1 or not self.fits(each[-1]):
            return None
        low = 0
        high = len(each) - 1  # low does not fit, high does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(each[middle]) else (middle, high)
        return self.plan(each[high])

    def _counts(self, options: Options) -> list[int]:
        """The numbers of accumulation steps that there can be, from that of the options on."""
        counts = [options.accumulate]
        while _can_split(options, counts[-1] * 2, self._ranks):
            counts.append(counts[-1] * 2)
        return counts


def strategies(options: Options, ranks: int, local: int) -> Iterator[Options]:
    """Those that `auto` chooses from, from the cheapest on, each before it is split into smaller
    micro-batches.

    Sharding sends half as much again as ddp; recomputing costs about a third of a step. What the
    user has asked for is kept.
    """
    sharded = [("fsdp", "none"), ("fsdp", "selective"), ("fsdp", "blocks")]
    alone = [("single", "none"), ("single", "selective"), ("single", "blocks")]
    for strategy, recompute in [("ddp", "none"), *sharded] if ranks > 1 else alone:
        if options.recompute not in ("none", recompute):
            recompute = options.recompute
        changed = replace(options, strategy=strategy, recompute=recompute)
        try:
            rules.check(changed, ranks, local)
        except rules.Refused:
            continue
        yield changed


def _can_split(options: Options, count: int, ranks: int) -> bool:
    """Whether each rank has a sample for each of so many accumulation steps. The batch may be the
    task's own.
    """
    if count > MAX_MICRO_BATCHES or options.strategy in ("pipeline", "hybrid"):
        return False
    batch = options.batch_size or _task_batch(options)
    return count * (1 if options.strategy in rules.ONE_PROCESS else ranks) <= batch


def _task_batch(options: Options) -> int:
    if options.task not in rules.TASKS:
        return 1  # not known: nothing is split
    return rules.capabilities(options.task, options.task_options).batch_size


def chosen_text(plan: Plan, fits: bool, device: Device) -> str:
    """One line about what `auto` took, and why."""
    low, expected, high = (f"{bytes_ / (1 << 30):.1f}" for bytes_ in plan.needed)
    where = f" of {device.memory / (1 << 30):.1f} GiB" if device.memory else ""
    why = "the cheapest plan that fits" if fits else "no plan surely fits, and this one takes least"
    return (
        f"--strategy auto: {plan.flags}, {why}: about {expected} GiB per rank ({low} to"
        f" {high}){where}"
    )
