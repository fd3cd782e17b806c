"""Samples of a node's ranks: the stack and the CPU time of each, taken again and again. Standard library only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Dict, List, Mapping

from cloudtrain_launcher.hang_verdict import Sample
from cloudtrain_launcher.processes import process_state, use_by_root
from cloudtrain_launcher.stacks import next_stack


class RankSamples:
    """What was seen of the ranks since `clear`. `scratch`: the folder into which they write their stacks."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._samples: Dict[int, List[Sample]] = {}

    def clear(self) -> None:
        """Begin anew."""
        self._samples.clear()

    def take(self, processes: Mapping[int, int]) -> None:
        """Take one sample of each, and forget others. `processes`: local rank -> process id."""
        now, uses = time.monotonic(), use_by_root(processes.values())
        self._samples = {
            local_rank: self._samples[local_rank] for local_rank in processes if local_rank in self._samples
        }
        for local_rank, pid in processes.items():
            samples = self._samples.setdefault(local_rank, [])
            is_first = not samples
            stack = next_stack(self._scratch, local_rank, pid)
            if is_first:
                stack = "(asked)"  # what an earlier silence has left; the answer comes with the next sample
            cpu_seconds = uses[pid].cpu_seconds if pid in uses else 0.0
            samples.append(Sample(now, cpu_seconds, stack, process_state(pid)))

    def known(self) -> Dict[int, List[Sample]]:
        """The samples of each local rank since it was asked for its stack."""
        return {local_rank: samples[1:] for local_rank, samples in self._samples.items()}

    def count(self) -> int:
        """How many times each rank has been seen at least, after it was asked; 0 if none was sampled."""
        return min((len(samples) for samples in self.known().values()), default=0)
