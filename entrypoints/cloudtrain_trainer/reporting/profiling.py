"""`--profile 10:15`: profile some steps of each rank with torch.profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cloudtrain_job import emit_event
from cloudtrain_launcher.events import Profile
from cloudtrain_trainer.ranks import Ranks


class StepProfiler:
    """Profiles the steps `first` to `last`, counted from 1 as in progress, on each rank.

    The file in `folder`, per rank: `rank-0.json.gz`, a trace for ui.perfetto.dev. A failure is a
    warning.
    """

    def __init__(self, first: int, last: int, folder: Path, ranks: Ranks) -> None:
        self.first = first
        self.last = last
        self._folder = folder
        self._ranks = ranks
        self._profile: Any = None
        self._started_at = 0
        self._done = 0
        self._failed = False

    def before_step(self, step: int) -> None:
        """Start at the first step to profile; a resumed run may begin between them."""
        if self._profile is None and not self._failed and self.first <= step <= self.last:
            self._started_at = step
            self._try(self._start)

    def after_step(self, step: int) -> None:
        """Write the file after the last step to profile."""
        self._done = step
        if self._profile is not None and step >= self.last:
            self.finish()

    def finish(self) -> None:
        """Write the file of the profiled steps; warn if training ended before the first."""
        if self._profile is not None:
            self._try(self._write)
            self._profile = None
        elif self._done < self.first:
            self._ranks.log(
                f"warning: --profile {self.first}:{self.last}: training has ended at step"
                f" {self._done}"
            )

    def _start(self) -> None:
        profile: Any = torch.profiler.profile(record_shapes=True, profile_memory=True)
        profile.start()
        self._profile = profile

    def _write(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        self._profile.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._folder / f"rank-{self._ranks.rank}.json.gz"))
        if self._ranks.rank == 0:
            emit_event(
                Profile(first_step=self._started_at, last_step=self._done, path=str(self._folder))
            )

    def _try(self, act: Callable[[], None]) -> None:
        """Continue training without a profile if this fails."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  (a disk, a driver, a version of torch: anything)
            self._failed = True
            self._profile = None
            print(
                f"warning: --profile is turned off: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
