"""Notice that a node's ranks hang: all are silent, and some wait. Standard library only.

After a minute without output or events, or a quarter of a shorter limit, the stack and the CPU time
of every rank are sampled. After two minutes a hang is named, and after the limit it is ended.
A rank waits if its stack stays the same, its main thread neither wakes up nor reads, and it is in a
collective or uses no CPU. A long computation is not a hang: it neither waits nor lets a peer wait
for longer than the limit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.hang_verdict import (
    RankActivity,
    Sample,
    activity,
    describe,
    describe_wait,
    duration,
    stack_lines,
    to_error,
    verdict,
)
from cloudtrain_launcher.rank_tracker import RankTracker
from cloudtrain_launcher.reporting import emit
from cloudtrain_launcher.stacks import STACK_SIGNAL, next_stack
from cloudtrain_wire.events import Activity, Error
from cloudtrain_wire.processes import ProcessTree, process_moves, process_state

SAMPLES = 20
"""Minimum number of samples per limit."""
FIRST_SAMPLE_SECONDS = 60.0
SAMPLE_SECONDS = 15.0
"""Maximum seconds between two samples until a hang should be named."""
NAMED_AFTER_SECONDS = 120.0
"""Silence after which a hang is named; half of the limit if that is shorter."""
_MIN_SAMPLES = 4
_OTHER_NODE_SHARE = 0.25
"""Extra wait, as a share of the limit, if all ranks of a node wait for another node.

The other node knows more.
"""

MAX_SAMPLES = 16
"""Maximum samples of each rank: its earlier work must not hide that it hangs now."""


class HangWatch:
    """Samples silent ranks of one node, and ends them if they hang for `limits.hang`."""

    def __init__(
        self, job: Job, ranks: RankTracker, scratch: Path, log: Callable[[str], None]
    ) -> None:
        self._job = job
        self._ranks = ranks
        self._log = log
        if STACK_SIGNAL:
            self._limit = float(job.hang_seconds)
        else:
            self._limit = 0.0

        if self._limit:
            self.seconds_between_checks = min(1.0, self._limit / SAMPLES)
        else:
            self.seconds_between_checks = 1.0

        """Maximum seconds between two calls of `check`."""
        self._samples = RankSamples(scratch)
        self._next_sample = 0.0
        self._has_warned = False

    def check(self, last_output: float) -> None:
        """Sample, warn, or end the ranks.

        `last_output`: when one of them last printed, by `time.monotonic()`.
        """
        time_now = time.monotonic()
        silent_seconds = time_now - last_output

        if not self._limit or silent_seconds < min(self._limit / 4, FIRST_SAMPLE_SECONDS):
            self._samples.clear()
            self._take_back()
            return

        if time_now < self._next_sample:
            return

        is_new = silent_seconds < 2 * NAMED_AFTER_SECONDS
        interval = self._limit / SAMPLES
        if is_new:
            interval = min(interval, SAMPLE_SECONDS)

        self._next_sample = time_now + interval
        self._samples.take(self._ranks.running())
        if silent_seconds > min(self._limit / 2, NAMED_AFTER_SECONDS):
            self._judge(silent_seconds)

    def _judge(self, silent_seconds: float) -> None:
        """Report the rank that the others wait for; end the attempt after the limit."""
        samples = self._samples.by_rank()
        if self._samples.count() < _MIN_SAMPLES:
            return

        folder = Path.cwd()
        ranks = []
        for local_rank in sorted(samples):
            rank = self._ranks.rank_of(local_rank)
            ranks.append(activity(rank, samples[local_rank], folder))

        ranks += [RankActivity(rank, "ended") for rank in self._ranks.ended()]
        result = verdict(ranks, self._job.nodes)
        if result is None:
            return

        blamed, waiting = result
        message = describe(blamed, waiting, silent_seconds, self._job.processes)
        if blamed in waiting:
            limit = self._limit * (1 + _OTHER_NODE_SHARE)
        else:
            limit = self._limit

        if silent_seconds >= limit:
            for one in ranks:
                for line in stack_lines(one):
                    self._log(line)

            self._end(
                to_error(blamed, message, time.time(), folder).replace(
                    consequence=blamed in waiting
                )
            )
        elif not self._has_warned:
            self._has_warned = True
            self._log(
                f"rank {blamed.rank} {message}; after {duration(limit)} the job ends (limits.hang)"
            )
            began = time.time() - silent_seconds
            emit(Activity(activity=describe_wait(blamed, waiting), time=began))

    def _take_back(self) -> None:
        if self._has_warned:
            self._has_warned = False
            emit(Activity(activity=""))

    def _end(self, error: Error) -> None:
        """Record the cause and kill one rank: torchrun ends and may restart the others."""
        self._ranks.add_error(error)
        self._samples.clear()
        self._take_back()
        running = self._ranks.running()
        blamed_first = sorted(running, key=lambda local: self._ranks.rank_of(local) != error.rank)

        for local_rank in blamed_first[:1]:
            with suppress(OSError):
                # Its processes may hang, too.
                os.killpg(running[local_rank], signal.SIGKILL)


class RankSamples:
    """Samples of the ranks since `clear`. `scratch`: the folder of their stacks."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._samples: dict[int, list[Sample]] = {}

    def clear(self) -> None:
        """Remove all samples."""
        self._samples.clear()

    def take(self, processes: Mapping[int, int]) -> None:
        """Take one sample of each, and drop other ranks. `processes`: local rank -> pid."""
        tree = ProcessTree()
        for local_rank in self._samples.keys() - processes.keys():
            del self._samples[local_rank]

        for local_rank, pid in processes.items():
            samples = self._samples.setdefault(local_rank, [])
            sample = _sample(pid, tree)  # before the request, which may wake the rank
            stack = next_stack(
                self._scratch,
                local_rank,
                pid,
                was_asked=bool(samples),
                sleeps=sample.state == "S",
            )

            if not samples:
                # the text is of an earlier silence; the answer comes with the next sample
                stack = "(asked)"

            samples.append(sample._replace(stack=stack))
            del samples[:-MAX_SAMPLES]

    def by_rank(self) -> dict[int, list[Sample]]:
        """Return the samples of each local rank since the request for its stack."""
        return {local_rank: samples[1:] for local_rank, samples in self._samples.items()}

    def count(self) -> int:
        """Return the minimum number of samples of a rank; 0 without samples."""
        return min((len(samples) for samples in self.by_rank().values()), default=0)


def _sample(pid: int, tree: ProcessTree) -> Sample:
    """Return the measurements of a rank, without the stack."""
    use = tree.use(pid)
    return Sample(
        time.monotonic(),
        use.cpu_seconds if use else 0.0,
        state=process_state(pid),
        moves=process_moves(pid),
    )
