"""Checkpoints that are whole or not there, and that every rank agrees on.

    step-00000120/  manifest.json   step, epoch, number of ranks, SHA-256 of every file
                    shared.pt       what is equal on all ranks, written by rank 0
                    rank-0.pt …     what each rank has of its own

All ranks write into `step-00000120.partial/`; after a barrier one rename makes the checkpoint visible. A disk
that does not show rank 0's folder is a node's own: there the node's first rank makes one, with a shared.pt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch

from ranks import Ranks

FORMAT = 1


class Found(NamedTuple):
    """The checkpoint that all ranks hold whole."""

    folder: Path
    step: int
    ranks: int
    """How many ranks wrote it."""


class Checkpoints:
    """The checkpoints of one run. Every method is called by all ranks together."""

    def __init__(self, folder: Path, keep: int, ranks: Ranks) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks
        if ranks.local_rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("step-*.partial"):  # a death in the middle of a save
                shutil.rmtree(left, ignore_errors=True)
        ranks.barrier()

    def save(self, step: int, epoch: int, shared: dict[str, Any], own: dict[str, Any]) -> tuple[Path, float]:
        """Write, make visible, and drop the oldest; returns the folder and the seconds it took."""
        started = time.monotonic()
        final = self.folder / f"step-{step:08d}"
        partial = final.with_name(final.name + ".partial")
        makes_folder = self._make(partial)
        written = {f"rank-{self.ranks.rank}.pt": _write(partial / f"rank-{self.ranks.rank}.pt", own)}
        if makes_folder:
            written["shared.pt"] = _write(partial / "shared.pt", shared)
        files = {name: digest for part in reversed(self.ranks.gather(written)) for name, digest in part.items()}
        if makes_folder:
            manifest = {
                "format": FORMAT,
                "step": step,
                "epoch": epoch,
                "ranks": self.ranks.size,
                "files": files,
            }
            _write_text(partial / "manifest.json", json.dumps(manifest, indent=1))
            _sync_folder(partial)
        self.ranks.barrier()
        if makes_folder:
            shutil.rmtree(final, ignore_errors=True)  # a torn one of that step, which was skipped
            partial.rename(final)
            _sync_folder(self.folder)
            self._prune(step)
        self.ranks.barrier()
        return final, time.monotonic() - started

    def newest(self) -> Found | None:
        """The newest checkpoint that every rank finds whole; what is torn is skipped, with a warning."""
        for step in self.ranks.gather(_steps(self.folder))[0]:
            folder = self.folder / f"step-{step:08d}"
            findings = self.ranks.gather(_examine(folder, self.ranks))
            wrong = [f"rank {rank}: {reason}" for rank, (reason, _) in enumerate(findings) if reason]
            if not wrong:
                return Found(folder, step, findings[0][1])
            if self.ranks.rank == 0:
                print(
                    f"warning: checkpoint {folder} is not whole ({wrong[0]}): skipped",
                    file=sys.stderr,
                    flush=True,
                )
        return None

    def load(self, found: Found) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(shared, own); own is None when another number of ranks wrote the checkpoint."""
        shared = torch.load(found.folder / "shared.pt", map_location="cpu", weights_only=True)
        if found.ranks != self.ranks.size:
            return shared, None
        name = f"rank-{self.ranks.rank}.pt"
        return shared, torch.load(found.folder / name, map_location="cpu", weights_only=True)

    def set_aside(self) -> None:
        """Start anew: earlier checkpoints move to a folder where neither resume nor pruning looks."""
        if self.ranks.local_rank == 0:
            aside = self.folder / f"before-{time.strftime('%Y%m%d-%H%M%S')}"
            steps = _steps(self.folder)
            if steps:
                self.ranks.say(f"--no-resume: training starts anew; the checkpoints so far are set aside in {aside}")
            for step in steps:
                aside.mkdir(exist_ok=True)
                folder = self.folder / f"step-{step:08d}"
                if folder.exists():  # on a shared disk another node's first rank may have been faster
                    folder.rename(aside / folder.name)
        self.ranks.barrier()

    def _make(self, partial: Path) -> bool:
        """Make the folder on every disk; True on the one rank per disk that did."""
        if self.ranks.rank == 0:
            partial.mkdir()
        self.ranks.barrier()
        own_disk = self.ranks.rank != 0 and self.ranks.local_rank == 0 and not partial.exists()
        if own_disk:
            partial.mkdir()
        self.ranks.barrier()
        return self.ranks.rank == 0 or own_disk

    def _prune(self, step: int) -> None:
        """Keep the newest. A later step than the one just saved can only be a torn one that was skipped."""
        steps = _steps(self.folder)
        kept = [s for s in steps if s <= step][: self.keep]
        for old in steps:
            if old not in kept:
                shutil.rmtree(self.folder / f"step-{old:08d}", ignore_errors=True)


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


def _examine(folder: Path, ranks: Ranks) -> tuple[str, int]:
    """(what is wrong with the files this rank would load, or "", and how many ranks wrote the checkpoint)."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return f"manifest.json has format {manifest['format']}, not {FORMAT}", 0
        writers, digests = int(manifest["ranks"]), manifest["files"]
        for name in ["shared.pt"] + ([f"rank-{ranks.rank}.pt"] if writers == ranks.size else []):
            if _digest(folder / name) != digests[name]:
                return f"{name} does not have the checksum of the manifest", 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}", 0
    return "", writers


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
