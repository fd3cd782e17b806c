"""Checkpoints that are whole or not there, and that every rank agrees on.

    step-00000120/  manifest.json   step, epoch, run, number of ranks, SHA-256 of every file
                    shared.json     what is equal on all ranks
                    rank-0.pt …     what each rank has of its own
                    weights-0/      weights and optimizer state (sharded.py), written by rank 0 and its neighbours

Training goes on while a thread writes a copy: all ranks write into `step-00000120.partial/`, and after a barrier one
rename makes the checkpoint visible. A disk that does not show what rank 0 writes is a node's own. If the ranks of a
node hold a whole model, they write one there; else each disk gets its ranks' files, and all of them are needed to go
on: `cloudtrain rerun` brings them to every node.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cloudtrain_job import to_json
from cloudtrain_trainer import sharded
from cloudtrain_trainer.checkpoint_files import (
    FORMAT,
    OWN,
    digest_of,
    examine,
    run_of,
    steps_in,
    sync_folder,
    write_tensors,
    write_text,
)  # fmt: skip
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused


class Found(NamedTuple):
    """The checkpoint that all ranks hold whole."""

    folder: Path
    step: int
    ranks: int
    """How many ranks wrote it."""
    weights: str
    """The name of the folder of weights on this disk."""


class Written(NamedTuple):
    """A checkpoint that has become visible."""

    folder: Path
    step: int
    seconds: float
    """From the order to the rename."""
    stall: float
    """Of these, for how long training stood still, in seconds."""


class Checkpoints:
    """The checkpoints of one run. Every method is called by all ranks together.

    `holders`: how many neighbouring ranks hold one whole model together. `run`: what tells this run from others, also
    when the platform has started it again; nothing if nobody has named it.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        ranks: Ranks,
        holders: int = 1,
        told: Callable[[Written], None] = lambda written: None,  # noqa: ARG005
        run: str = "",
    ) -> None:
        self.folder, self.keep, self.ranks, self._told, self._run = folder, keep, ranks, told, run
        if ranks.local_rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("step-*.partial"):  # a death in the middle of a save
                shutil.rmtree(left, ignore_errors=True)
        ranks.barrier()
        disks = self._disks()
        self.makes_folder = ranks.rank in disks
        self.spread = len(disks) > 1 and any(first % holders for first in [*disks, ranks.size])
        """Whether a whole model lies on several disks."""
        bounds = [0, ranks.size] if self.spread else [*disks, ranks.size]
        members = [list(range(a, b)) for a, b in zip(bounds, bounds[1:])]  # noqa: B905, RUF007
        self.first = max(m[0] for m in members if m[0] <= ranks.rank)
        self.brings = ranks.rank - self.first < holders
        """Whether this rank's part is written; other ranks have copies of what these have."""
        self._all = ranks.group_of([list(range(ranks.size))])
        self._writers = self._all if len(members) == 1 else ranks.group_of(members)
        self._thread: threading.Thread | None = None
        self._trouble: BaseException | None = None

    def save(
        self, step: int, epoch: int, tensors: dict[str, Tensor], shared: dict[str, Any], own: dict[str, Any]
    ) -> None:
        """Copy `tensors` and write them while training goes on; `own` and `shared` must not change any more."""
        started = time.monotonic()
        self.finish()
        staged = sharded.staged(tensors) if self.brings else {}
        stall = time.monotonic() - started

        def work() -> None:
            try:
                if self.ranks.device.type == "cuda":  # a new thread's is the first GPU, where another rank computes
                    torch.cuda.set_device(self.ranks.device)
                folder = self._write(step, epoch, staged, shared, own)
                self._told(Written(folder, step, time.monotonic() - started, stall))
            except BaseException as error:  # noqa: BLE001  (raised by finish)
                self._trouble = error

        self._thread = threading.Thread(target=work, name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last one is visible; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    def steps(self) -> list[int]:
        """Those with a checkpoint that this rank sees, newest first."""
        return steps_in(self.folder)

    def newest(self) -> Found | None:
        """The newest checkpoint that every rank finds whole; what is torn is skipped, with a warning."""
        apart = ""
        for step in self.ranks.gather(steps_in(self.folder))[0]:
            folder = self.folder / f"step-{step:08d}"
            found = examine(folder, self.ranks)
            findings = self.ranks.gather(found)
            wrong = [f"rank {rank}: {one.wrong}" for rank, one in enumerate(findings) if one.wrong]
            if not wrong:
                return Found(folder, step, found.ranks, found.weights)
            apart = apart or (wrong[0] if any(one.spread for one in findings) else "")
            if self.ranks.rank == 0:
                print(f"warning: checkpoint {folder} is not whole ({wrong[0]}): skipped", file=sys.stderr, flush=True)
        if apart:
            raise Refused(
                f"the checkpoints in {self.folder} lie in parts on the nodes' own disks ({apart}): start the job anew "
                "by cloudtrain rerun, which brings all parts to every node, or give the nodes a shared disk"
            )
        return None

    def about(self, found: Found) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(shared, own); own is None when another number of ranks wrote the checkpoint."""
        shared: dict[str, Any] = json.loads((found.folder / "shared.json").read_text())
        if found.ranks != self.ranks.size:
            return shared, None
        name = f"rank-{self.ranks.rank}.pt"
        return shared, torch.load(found.folder / name, map_location="cpu", weights_only=True)

    def load(self, found: Found, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put its tensors into the model and the optimizer."""
        sharded.read(found.folder / found.weights, model, optimizer)

    def set_aside(self) -> None:
        """Start anew: earlier checkpoints move to a folder where neither resume nor pruning looks.

        Those of this very run stay: a platform that takes a machine away starts the same run, with the same flags, on
        another. It may also bring back what was set aside before, in its old place.
        """
        if self.makes_folder:
            steps = [self.folder / f"step-{step:08d}" for step in steps_in(self.folder)]
            own = [path for path in steps if self._run and run_of(path) == self._run]
            others = [path for path in steps if path not in own]
            files = [] if own else [path for path in self.folder.iterdir() if path.is_file()]
            name = re.sub(r"[^\w.-]", "_", self._run) or time.strftime("%Y%m%d-%H%M%S")
            aside = self.folder / f"before-{name}"
            if others:
                now = "this run goes on; the checkpoints of others" if own else "training starts anew; the checkpoints"
                self.ranks.say(f"--no-resume: {now} so far are set aside in {aside}")
            for path in [*others, *files]:
                aside.mkdir(exist_ok=True)
                _move(path, aside / path.name)
        self.ranks.barrier()

    def _write(
        self, step: int, epoch: int, tensors: dict[str, Tensor], shared: dict[str, Any], own: dict[str, Any]
    ) -> Path:
        """In a thread of its own, with a group of its own: the main thread's collectives go on meanwhile."""
        final = self.folder / f"step-{step:08d}"
        partial = final.with_name(final.name + ".partial")
        weights = partial / f"weights-{self.first}"
        if self.makes_folder:
            weights.mkdir(parents=True)
            if self._writers is not self._all:
                (weights / OWN).touch()  # a whole model, and other disks have one of their own
        self._wait()
        sharded.write(weights, tensors, self._writers)
        mine = f"__{self.ranks.rank - self.first}_*.distcp"
        names = [*weights.glob(mine)] + ([weights / ".metadata"] if self.ranks.rank == self.first else [])
        written = {f"{weights.name}/{path.name}": digest_of(path) for path in names}
        written[f"rank-{self.ranks.rank}.pt"] = write_tensors(partial / f"rank-{self.ranks.rank}.pt", own)
        index = (weights / ".metadata").read_bytes() if self.spread and self.ranks.rank == 0 else b""
        told = self.ranks.gather((written, index), self._all)
        if self.makes_folder:
            if self.spread and self.ranks.rank != 0:
                (weights / ".metadata").write_bytes(told[0][1])
            files = {name: digest for part, _ in told for name, digest in part.items()}
            about = {"format": FORMAT, "run": self._run, "step": step, "epoch": epoch}
            about |= {"ranks": self.ranks.size, "spread": self.spread}
            text = to_json(shared, indent=1)
            write_text(partial / "shared.json", text)
            files["shared.json"] = hashlib.sha256(text.encode()).hexdigest()
            write_text(partial / "manifest.json", to_json({**about, "files": files}, indent=1))
            sync_folder(weights)
            sync_folder(partial)
        self._wait()
        if self.makes_folder:
            shutil.rmtree(final, ignore_errors=True)  # a torn one of that step, which was skipped
            partial.rename(final)
            sync_folder(self.folder)
            self._prune(step)
        self._wait()
        return final

    def _wait(self) -> None:
        self.ranks.gather(None, self._all)

    def _disks(self) -> list[int]:
        """The first rank on each disk. Rank 0's shows its mark; where it cannot be seen, the disk is a node's own."""
        mark = self.ranks.gather(f".disk-{time.time_ns()}")[0]
        if self.ranks.rank == 0:
            (self.folder / mark).touch()
        self.ranks.barrier()
        own = self.ranks.rank == 0 or (self.ranks.local_rank == 0 and not (self.folder / mark).exists())
        disks = [rank for rank, first in enumerate(self.ranks.gather(own)) if first]
        if self.ranks.rank == 0:
            (self.folder / mark).unlink()
        return disks

    def _prune(self, step: int) -> None:
        """Keep the newest. A later step than the one just saved can only be a torn one that was skipped."""
        steps = steps_in(self.folder)
        kept = [s for s in steps if s <= step][: self.keep]
        for old in steps:
            if old not in kept:
                shutil.rmtree(self.folder / f"step-{old:08d}", ignore_errors=True)


def _move(path: Path, target: Path) -> None:
    """What lies there already has been brought back to its old place once more."""
    if not target.exists():
        with suppress(FileNotFoundError):  # a node that shares this disk, but not rank 0's, may have been faster
            path.rename(target)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
