"""Downloads a file that is known beforehand: once per node, no more than its size, and only if its digest is right."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from cloudtrain_trainer.rules import Refused

SILENCE_SECONDS, MOST_SECONDS = 30, 300
"""How long the server may say nothing, and how long one file may take."""
BLOCK_BYTES = 1 << 16


def cache_folder(name: str) -> Path:
    """Where downloads are kept on this machine: below $XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloudtrain" / name


def fetch(address: str, folder: Path, size: int, sha256: str, instead: str) -> Path:
    """The file at `address`, from `folder` if it is there already. `instead`: the way out, for `Refused`.

    The ranks of a node wait for each other: the first one downloads. What is in the folder is checked each time.
    """
    path = folder / address.rpartition("/")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, or its process ends
            if path.is_file() and _digest(path.read_bytes()) == sha256:
                return path
            content = _download(address, size)
            if _digest(content) != sha256:
                raise Refused(f"{address} is not what it was: sha256 {_digest(content)}, expected {sha256}; {instead}")
            temporary = path.with_name(path.name + ".tmp")
            temporary.write_bytes(content)
            temporary.replace(path)
    except (OSError, HTTPException) as error:
        raise Refused(f"{address} could not be downloaded to {folder}: {error}; {instead}") from error
    return path


def _download(address: str, size: int) -> bytes:
    """At most one byte more than `size`. OSError when it cannot be reached or takes too long."""
    content, until = bytearray(), time.monotonic() + MOST_SECONDS
    with urlopen(address, timeout=SILENCE_SECONDS) as answer:
        while len(content) <= size:
            block = answer.read1(min(BLOCK_BYTES, size + 1 - len(content)))
            if not block:
                break
            content += block
            if time.monotonic() > until:
                raise OSError(f"it took longer than {MOST_SECONDS} seconds")
    return bytes(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
