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
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

import sharded
from ranks import Ranks
from rules import Refused

FORMAT = 2


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

    def newest(self) -> Found | None:
        """The newest checkpoint that every rank finds whole; what is torn is skipped, with a warning."""
        apart = ""
        for step in self.ranks.gather(_steps(self.folder))[0]:
            folder = self.folder / f"step-{step:08d}"
            found = _examine(folder, self.ranks)
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
            steps = [self.folder / f"step-{step:08d}" for step in _steps(self.folder)]
            own = [path for path in steps if self._run and _run_of(path) == self._run]
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
        self._wait()
        sharded.write(weights, tensors, self._writers)
        mine = f"__{self.ranks.rank - self.first}_*.distcp"
        names = [*weights.glob(mine)] + ([weights / ".metadata"] if self.ranks.rank == self.first else [])
        written = {f"{weights.name}/{path.name}": _digest(path) for path in names}
        written[f"rank-{self.ranks.rank}.pt"] = _write(partial / f"rank-{self.ranks.rank}.pt", own)
        index = (weights / ".metadata").read_bytes() if self.spread and self.ranks.rank == 0 else b""
        told = self.ranks.gather((written, index), self._all)
        if self.makes_folder:
            if self.spread and self.ranks.rank != 0:
                (weights / ".metadata").write_bytes(told[0][1])
            files = {name: digest for part, _ in told for name, digest in part.items()}
            about = {"format": FORMAT, "run": self._run, "step": step, "epoch": epoch}
            about |= {"ranks": self.ranks.size, "spread": self.spread}
            text = json.dumps(shared, indent=1)
            _write_text(partial / "shared.json", text)
            files["shared.json"] = hashlib.sha256(text.encode()).hexdigest()
            _write_text(partial / "manifest.json", json.dumps({**about, "files": files}, indent=1))
            _sync_folder(weights)
            _sync_folder(partial)
        self._wait()
        if self.makes_folder:
            shutil.rmtree(final, ignore_errors=True)  # a torn one of that step, which was skipped
            partial.rename(final)
            _sync_folder(self.folder)
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
        steps = _steps(self.folder)
        kept = [s for s in steps if s <= step][: self.keep]
        for old in steps:
            if old not in kept:
                shutil.rmtree(self.folder / f"step-{old:08d}", ignore_errors=True)


def _run_of(folder: Path) -> str:
    """Which run wrote a checkpoint; nothing if it does not say."""
    try:
        return str(json.loads((folder / "manifest.json").read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _move(path: Path, target: Path) -> None:
    """What lies there already has been brought back to its old place once more."""
    if not target.exists():
        with suppress(FileNotFoundError):  # a node that shares this disk, but not rank 0's, may have been faster
            path.rename(target)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class _HashedFile:
    """A file that hashes what passes through, so that nothing is read twice or held in memory."""

    def __init__(self, file: Any) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return int(self.file.write(data))

    def flush(self) -> None:
        self.file.flush()


def _write(path: Path, content: dict[str, Any]) -> str:
    """Save, force to disk, and return the SHA-256."""
    with path.open("wb") as file:
        hashed = _HashedFile(file)
        torch.save(content, cast("IO[bytes]", hashed))
        file.flush()
        os.fsync(file.fileno())
    return hashed.hash.hexdigest()


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A name is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _steps(folder: Path) -> list[int]:
    """The steps with a visible checkpoint, newest first."""
    matches = [re.fullmatch(r"step-(\d{8,})", entry.name) for entry in folder.iterdir()]
    return sorted((int(m[1]) for m in matches if m), reverse=True)


class _Finding(NamedTuple):
    """What one rank sees of a checkpoint."""

    wrong: str
    """What is wrong with the files that it looked at, or nothing."""
    ranks: int = 0
    weights: str = ""
    spread: bool = False
    """Whether what is missing may lie on another node's disk."""


def _examine(folder: Path, ranks: Ranks) -> _Finding:
    """Look at the files this rank would load; the large ones are shared out among the ranks of a node."""
    spread = False
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return _Finding(f"manifest.json has format {manifest['format']}, not {FORMAT}")
        writers, digests = int(manifest["ranks"]), manifest["files"]
        places = sorted({name.partition("/")[0] for name in digests if "/" in name}, key=lambda n: int(n[8:]))
        weights = next((place for place in places if (folder / place).is_dir()), places[0])
        large = sorted(name for name in digests if name.startswith(weights + "/"))
        names = large[ranks.local_rank :: ranks.local_size]
        names += ["shared.json"] + ([f"rank-{ranks.rank}.pt"] if writers == ranks.size else [])
        spread = bool(manifest["spread"]) and not all((folder / name).exists() for name in names)
        for name in names:
            if _digest(folder / name) != digests[name]:
                return _Finding(f"{name} does not have the checksum of the manifest")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        return _Finding(f"{type(error).__name__}: {error}", spread=spread)
    return _Finding("", writers, weights)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
