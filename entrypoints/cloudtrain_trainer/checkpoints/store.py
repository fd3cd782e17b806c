"""Checkpoints that are complete or do not exist; all ranks use the same one.

    step-00000120/  manifest.json   step, epoch, run, number of ranks, sum of every file (sums.py)
                    shared.json     state that is equal on all ranks
                    rank-0.pt …     state of each rank
                    weights-0/      weights and optimizer state (tensors.py): each rank of the node
                                    of rank 0 writes a share
    best-00000100/  the same, with the weights of the best evaluation alone

A thread writes a copy while training continues: all ranks write into `step-00000120.partial/`, and
after a barrier one rename makes the checkpoint visible. A disk without rank 0's files belongs to
another node: the ranks of the first node on each disk write the weights to it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cloudtrain_job import to_json
from cloudtrain_trainer.checkpoints import tensors as checkpoint_tensors
from cloudtrain_trainer.checkpoints.files import (  # fmt: skip
    FORMAT,
    NODE_LOCAL,
    HostCopies,
    inspect_checkpoint,
    prune,
    prune_best,
    set_aside,
    steps_in,
    sync_folder,
    write_tensors,
    write_text,
)
from cloudtrain_trainer.ranks import Ranks


class FoundCheckpoint(NamedTuple):
    """A checkpoint that is complete on all ranks."""

    folder: Path
    step: int
    ranks: int
    """The number of ranks that saved it."""
    weights: str
    """The name of its folder of weights on this disk."""

    @property
    def path(self) -> Path:
        return self.folder / self.weights


class SavedCheckpoint(NamedTuple):
    """A checkpoint that has just become visible."""

    folder: Path
    step: int
    seconds: float
    """From the call of `save` to the rename."""
    stall: float
    """Seconds of it during which training stood still."""


class CheckpointStore:
    """The checkpoints of one run in a folder. All ranks call each method together.

    `on_saved`: called after each save. `run`: the run's id, which stays the same when its platform
    restarts it; empty: unknown. `writes`: false for a run that only reads, while another may write.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        ranks: Ranks,
        on_saved: Callable[[SavedCheckpoint], None] = lambda saved: None,  # noqa: ARG005
        run: str = "",
        writes: bool = True,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.ranks = ranks
        self._on_saved = on_saved
        self.run = run
        if ranks.local_rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            if writes:  # an earlier process may have died while saving
                partials = list(folder.glob("step-*.partial"))
                partials += folder.glob("best-*.partial")
                for partial in partials:
                    shutil.rmtree(partial, ignore_errors=True)
        ranks.barrier()

        disks = self._first_rank_per_disk()
        self.leads_disk = ranks.rank in disks
        """True if this rank makes the folders on its disk."""
        first = ranks.rank - ranks.local_rank  # of this node
        self._writes = first in disks
        """True if this rank writes a share of the weights: its node is the first on its disk."""
        self._weights = f"weights-{first}"
        self._disks = len(disks)
        self._group = ranks.new_gloo_group()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None
        self.copies = HostCopies()
        self.best_copies = HostCopies()
        self._saving: Future[None] | None = None
        self._saving_best: Future[None] | None = None

    def save(
        self,
        step: int,
        epoch: int,
        tensors: dict[str, Tensor],
        shared: dict[str, Any],
        rank_state: dict[str, Any],
        steady: Collection[str] = (),
    ) -> None:
        """Copy the tensors to host memory and write them in a thread.

        `shared`: JSON, equal on all ranks. `rank_state`: this rank's state, for torch.save. Both
        must not change afterwards. `steady`: as in `HostCopies.copy`.
        """
        started = time.monotonic()
        if self._saving is not None:
            self._saving.result()  # it reads the copies to overwrite
        self.check()
        copied = self.copies.copy(self._share(tensors), steady)
        called = time.monotonic() - started

        def write() -> None:
            self.copies.wait()
            folder = self.folder / f"step-{step:08d}"
            self._write(folder, step, epoch, copied, shared, rank_state)
            if self.leads_disk:
                prune(self.folder, step, self.keep)
            seconds = time.monotonic() - started
            self._on_saved(SavedCheckpoint(folder, step, seconds, called + self.copies.held))

        self._saving = self._write_behind(write)

    def save_best(
        self,
        step: int,
        tensors: dict[str, Tensor],
        steady: Collection[str],
        keep_step: int,
    ) -> None:
        """Copy the best weights to host memory, and write them in a thread after earlier work.

        Earlier ones are deleted, except those of `keep_step`. Otherwise as `save`.
        """
        if self._saving_best is not None:
            self._saving_best.result()  # it reads the copies to overwrite
        copied = self.best_copies.copy(self._share(tensors), steady)

        def write() -> None:
            self.best_copies.wait()
            self._write(self.folder / f"best-{step:08d}", step, 0, copied, {}, {})
            if self.leads_disk:
                prune_best(self.folder, {step, keep_step})

        self._saving_best = self._write_behind(write)

    def _write_behind(self, work: Callable[[], None]) -> Future[None]:
        """Run this in a thread after earlier work, unless that failed; `check` raises its error."""
        before = self._last

        def on_this_device() -> None:
            if before is not None:
                before.result()
            # A new thread uses the first GPU, which is another rank's.
            if self.ranks.device.type == "cuda":
                torch.cuda.set_device(self.ranks.device)
            work()

        self._last = self._thread.submit(on_this_device)
        return self._last

    def finish(self) -> None:
        """Wait until the last checkpoint is visible. Raises the error if saving failed."""
        if self._last is not None:
            self._last.result()

    def check(self) -> None:
        """Raise the error of the last save, if it failed."""
        if self._last is not None and self._last.done():
            self._last.result()

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints on this rank's disk, newest first."""
        return steps_in(self.folder)

    def find_newest(self) -> FoundCheckpoint | None:
        """Return the newest checkpoint that is complete on every rank, or None.

        Skip incomplete ones with a warning.
        """
        for step in self.ranks.all_gather(steps_in(self.folder))[0]:
            folder = self.folder / f"step-{step:08d}"
            found, problems = self._inspect(folder, step)
            if not problems:
                return found
            if self.ranks.rank == 0:
                message = f"warning: checkpoint {folder} is not complete ({problems[0]}): skipped"
                print(message, file=sys.stderr, flush=True)
        return None

    def find_best(self, step: int) -> FoundCheckpoint | None:
        """Return the best weights, saved after this step, or None if they are incomplete."""
        found, problems = self._inspect(self.folder / f"best-{step:08d}", step)
        return None if problems else found

    def _inspect(self, folder: Path, step: int) -> tuple[FoundCheckpoint, list[str]]:
        """Return a checkpoint, and the problems of all ranks with it."""
        inspections = self.ranks.all_gather(inspect_checkpoint(folder, self.ranks))
        problems = []
        for rank, inspection in enumerate(inspections):
            if inspection.problem:
                problems.append(f"rank {rank}: {inspection.problem}")

        mine = inspections[self.ranks.rank]
        return FoundCheckpoint(folder, step, mine.ranks, mine.weights), problems

    def read_state(
        self, checkpoint: FoundCheckpoint
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return (shared, rank_state) as given to `save`.

        The second is None if another number of ranks saved the checkpoint.
        """
        shared: dict[str, Any] = json.loads((checkpoint.folder / "shared.json").read_text())
        if checkpoint.ranks != self.ranks.size:
            return shared, None
        name = f"rank-{self.ranks.rank}.pt"
        return shared, torch.load(checkpoint.folder / name, map_location="cpu", weights_only=True)

    def read_tensors(self, checkpoint: FoundCheckpoint) -> dict[str, Tensor]:
        """Return weights and optimizer state by name, in host memory or on disk."""
        return checkpoint_tensors.read(checkpoint.path)

    def set_aside(self) -> None:
        """Move earlier checkpoints into a folder that resuming ignores.

        Checkpoints of this same run stay: a platform that preempts a machine restarts the run
        elsewhere with the same flags. A platform may also restore files that were moved before to
        their old path.
        """
        if self.leads_disk:
            set_aside(self.folder, self.run, self.ranks.log)
        self.ranks.barrier()

    def _write(
        self,
        final: Path,
        step: int,
        epoch: int,
        tensors: dict[str, Tensor],
        shared: dict[str, Any],
        rank_state: dict[str, Any],
    ) -> None:
        """Write the files of a folder in a thread, with a separate process group.

        The main thread's collectives continue meanwhile.
        """
        partial = final.with_name(final.name + ".partial")
        written: dict[str, str] = {}

        weights = partial / self._weights
        if self.leads_disk:
            weights.mkdir(parents=True)
            if self._disks > 1:
                (weights / NODE_LOCAL).touch()
        self._wait()
        if self._writes:
            name = f"tensors-{self.ranks.local_rank}.pt"
            written[f"{weights.name}/{name}"] = write_tensors(weights / name, tensors)

        name = f"rank-{self.ranks.rank}.pt"
        written[name] = write_tensors(partial / name, rank_state)

        by_rank = self.ranks.all_gather(written, self._group)
        if self.leads_disk:
            sync_folder(weights)
            files: dict[str, str] = {}
            for of_rank in by_rank:
                files |= of_rank
            text = to_json(shared, indent=1)
            write_text(partial / "shared.json", text)
            files["shared.json"] = hashlib.sha256(text.encode()).hexdigest()
            manifest = {
                "format": FORMAT,
                "run": self.run,
                "step": step,
                "epoch": epoch,
                "ranks": self.ranks.size,
                "files": files,
            }
            write_text(partial / "manifest.json", to_json(manifest, indent=1))
            sync_folder(partial)

        self._wait()
        if self.leads_disk:
            shutil.rmtree(final, ignore_errors=True)  # an incomplete one of this step
            partial.rename(final)
            sync_folder(self.folder)
        self._wait()

    def _share(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors that this rank writes: the ranks of its node share them by bytes.

        Called by all ranks. A user's optimizer may keep state of some parameters on some ranks only:
        then the first rank of the node writes all that it has.
        """
        listed = "\n".join(f"{name} {value.nbytes}" for name, value in tensors.items())
        digest = zlib.crc32(listed.encode()) >> 1  # fits into int32, and so does its negative
        largest, smallest = self.ranks.all_reduce_max(digest, -digest)()
        if not self._writes:
            return {}
        if largest != -smallest:
            return tensors if self.ranks.local_rank == 0 else {}

        mine: dict[str, Tensor] = {}
        loads = [0] * self.ranks.local_size
        for name in sorted(tensors, key=lambda name: -tensors[name].nbytes):
            lightest = loads.index(min(loads))
            loads[lightest] += tensors[name].nbytes
            if lightest == self.ranks.local_rank:
                mine[name] = tensors[name]

        return mine

    def _wait(self) -> None:
        self.ranks.all_gather(None, self._group)

    def _first_rank_per_disk(self) -> list[int]:
        """Return the first rank on each disk.

        Rank 0 creates a file, and a node that does not see it has another disk.
        """
        mark = self.ranks.all_gather(f".disk-{time.time_ns()}")[0]
        if self.ranks.rank == 0:
            (self.folder / mark).touch()
        self.ranks.barrier()
        leads = self.ranks.rank == 0 or (
            self.ranks.local_rank == 0 and not (self.folder / mark).exists()
        )
        disks = [rank for rank, first in enumerate(self.ranks.all_gather(leads)) if first]
        if self.ranks.rank == 0:
            (self.folder / mark).unlink()
        return disks
