"""Report once which ranks of a node run long after others have ended. Standard library only.

It is information, not an error: the first rank may evaluate or upload after the others. It may also
wait for an ended rank, or be stuck on its way out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.events import Activity
from cloudtrain_launcher.hang_verdict import activity, duration, stack_lines
from cloudtrain_launcher.rank_samples import RankSamples
from cloudtrain_launcher.rank_tracker import RankTracker
from cloudtrain_launcher.reporting import emit

SILENT_SECONDS = 60.0
"""Maximum silence of all ranks before the report, which comes before a hang's."""
_N_SAMPLES = 3
_MAX_SHOWN = 4
"""Maximum number of ranks whose stacks are logged."""


class LateRanks:
    """Reports ranks of one node that stay when others have ended, once per attempt."""

    def __init__(
        self, job: Job, ranks: RankTracker, scratch: Path, log: Callable[[str], None]
    ) -> None:
        self._ranks = ranks
        self._log = log
        self._samples = RankSamples(scratch)
        self._seconds = (
            min(SILENT_SECONDS, job.hang_seconds / 4) if job.hang_seconds else SILENT_SECONDS
        )
        self._next_sample = 0.0
        self._reported_attempt = -1
        self._is_shown = False

    def check(self, silent_seconds: float) -> bool:
        """Sample and report, if due; return True if it asks the ranks for their stacks."""
        if silent_seconds < self._seconds:
            self._samples.clear()
            self._take_back()
            return False
        late = {**self._ranks.running(), **self._ranks.lingering()}
        if not late or not self._ranks.finished or self._reported_attempt == self._ranks.attempt:
            return False
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._seconds / SILENT_SECONDS
            self._samples.take(late)
        if self._samples.count() >= _N_SAMPLES:
            self._reported_attempt = self._ranks.attempt
            self._report(late)
            self._samples.clear()
        return True

    def _report(self, late: Iterable[int]) -> None:
        finished = self._ranks.finished
        present = {self._ranks.rank_of(local_rank) for local_rank in late}
        leaving = present & set(finished)
        ended = set(finished) - present
        ended_ago = duration(max(0.0, time.time() - max(finished.values())))
        texts = [f"{rank_names(ended)} ended {ended_ago} ago with exit code 0"] if ended else []
        texts += [f"{_are(present - leaving)} still running"] if present - leaving else []
        texts += [f"{_are(leaving)} at the end of the program, but not gone"] if leaving else []
        self._log(f"{'; '.join(texts)}; nothing has been heard since")
        samples = self._samples.by_rank()
        for local_rank in sorted(samples)[:_MAX_SHOWN]:
            if any(sample.stack for sample in samples[local_rank]):
                rank = activity(self._ranks.rank_of(local_rank), samples[local_rank], Path.cwd())
                for line in stack_lines(rank):
                    self._log(line)
        emit(
            Activity(
                activity=(f"{rank_names(ended)} ended, " if ended else "")
                + f"waiting for {rank_names(present)}"
            )
        )
        self._is_shown = True

    def _take_back(self) -> None:
        if self._is_shown:
            self._is_shown = False
            emit(Activity(activity=""))


def rank_names(ranks: Iterable[int]) -> str:
    """Format ranks: `rank 3`, `ranks 0, 2 and 5`, `ranks 1 to 7`; empty for none."""
    numbers = sorted(ranks)
    if len(numbers) < 2:
        return f"rank {numbers[0]}" if numbers else ""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _are(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"{rank_names(numbers)} {'is' if len(numbers) == 1 else 'are'}"
