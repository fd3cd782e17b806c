"""Samples of a node's ranks: the stack and the CPU time of each, taken again and again. Standard
library only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cloudtrain_launcher.hang_verdict import Sample
from cloudtrain_launcher.processes import ProcessTree, process_moves, process_state
from cloudtrain_launcher.stacks import next_stack

MAX_SAMPLES = 16
"""Samples that are kept of each rank: what it did before must not hide that it hangs now."""


class RankSamples:
    """What was seen of the ranks since `clear`. `scratch`: the folder into which they write their
    stacks.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._samples: dict[int, list[Sample]] = {}

    def clear(self) -> None:
        """Begin anew."""
        self._samples.clear()

    def take(self, processes: Mapping[int, int]) -> None:
        """Take one sample of each, and forget others. `processes`: local rank -> process id."""
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
                # what an earlier silence has left; the answer comes with the next sample
                stack = "(asked)"
            samples.append(sample._replace(stack=stack))
            del samples[:-MAX_SAMPLES]

    def known(self) -> dict[int, list[Sample]]:
        """The samples of each local rank since it was asked for its stack."""
        return {local_rank: samples[1:] for local_rank, samples in self._samples.items()}

    def count(self) -> int:
        """How many times each rank has been seen at least, after it was asked; 0 if none was
        sampled.
        """
        return min((len(samples) for samples in self.known().values()), default=0)


def _sample(pid: int, tree: ProcessTree) -> Sample:
    """Return what a rank and its descendants have done so far; without the stack."""
    use = tree.use(pid)
    children = {child: process_moves(child) for child in tree.descendants(pid)}
    return Sample(
        time.monotonic(),
        use.cpu_seconds if use else 0.0,
        state=process_state(pid),
        moves=process_moves(pid, threads=True),
        children={child: moves for child, moves in children.items() if moves},
    )
