"""Sample the stack and CPU time of a node's ranks repeatedly. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cloudtrain_launcher.hang_verdict import Sample
from cloudtrain_launcher.processes import ProcessTree, process_moves, process_state
from cloudtrain_launcher.stacks import next_stack

MAX_SAMPLES = 16
"""Maximum samples of each rank: its earlier work must not hide that it hangs now."""


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
        self._samples = {
            local_rank: self._samples[local_rank]
            for local_rank in processes
            if local_rank in self._samples
        }
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
    """Return the measurements of a rank and its descendants, without the stack."""
    use = tree.use(pid)
    children = {child: process_moves(child) for child in tree.descendants(pid)}
    return Sample(
        time.monotonic(),
        use.cpu_seconds if use else 0.0,
        state=process_state(pid),
        moves=process_moves(pid, threads=True),
        children={child: moves for child, moves in children.items() if moves},
    )
