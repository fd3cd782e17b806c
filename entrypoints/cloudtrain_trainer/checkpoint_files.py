"""The files of a checkpoint: forced to disk and hashed as they are written, examined before they are used."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch

from cloudtrain_trainer.ranks import Ranks

FORMAT = 2
"""Of the files and their names; a checkpoint of another is passed over."""


OWN = ".own"
"""Says of the folder that it is in that only its own node needs it: the launcher does not bring it to others."""


def run_of(folder: Path) -> str:
    """Which run wrote a checkpoint; nothing if it does not say."""
    try:
        return str(json.loads((folder / "manifest.json").read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


class _HashedFile:
    """A file that hashes what passes through, so that nothing is read twice or held in memory."""

    def __init__(self, file: Any) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return int(self.file.write(data))

    def flush(self) -> None:
        self.file.flush()


def write_tensors(path: Path, content: dict[str, Any]) -> str:
    """Save, force to disk, and return the SHA-256."""
    with path.open("wb") as file:
        hashed = _HashedFile(file)
        torch.save(content, cast("IO[bytes]", hashed))
        file.flush()
        os.fsync(file.fileno())
    return hashed.hash.hexdigest()


def write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """A name is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def steps_in(folder: Path) -> list[int]:
    """The steps with a visible checkpoint, newest first."""
    matches = [re.fullmatch(r"step-(\d{8,})", entry.name) for entry in folder.iterdir()]
    return sorted((int(m[1]) for m in matches if m), reverse=True)


class Finding(NamedTuple):
    """What one rank sees of a checkpoint."""

    wrong: str
    """What is wrong with the files that it looked at, or nothing."""
    ranks: int = 0
    weights: str = ""
    spread: bool = False
    """Whether what is missing may lie on another node's disk."""


def examine(folder: Path, ranks: Ranks) -> Finding:
    """Look at the files this rank would load; the large ones are shared out among the ranks of a node."""
    spread = False
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return Finding(f"manifest.json has format {manifest['format']}, not {FORMAT}")
        writers, digests = int(manifest["ranks"]), manifest["files"]
        places = sorted({name.partition("/")[0] for name in digests if "/" in name}, key=lambda n: int(n[8:]))
        weights = next((place for place in places if (folder / place).is_dir()), places[0])
        large = sorted(name for name in digests if name.startswith(weights + "/"))
        names = large[ranks.local_rank :: ranks.local_size]
        if manifest["spread"] and writers == ranks.size:  # each its own part, however many parts its disk shows
            absent = next((name for name in large if not (folder / name).exists()), "")
            if absent:
                return Finding(f"{absent} is not there", spread=True)
            names = [name for name in large if name.startswith((f"{weights}/__{ranks.rank}_", f"{weights}/.metadata"))]
        names += ["shared.json"] + ([f"rank-{ranks.rank}.pt"] if writers == ranks.size else [])
        spread = bool(manifest["spread"]) and not all((folder / name).exists() for name in names)
        for name in names:
            if digest_of(folder / name) != digests[name]:
                return Finding(f"{name} does not have the checksum of the manifest")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        return Finding(f"{type(error).__name__}: {error}", spread=spread)
    return Finding("", writers, weights)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
