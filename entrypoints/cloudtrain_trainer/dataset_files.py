"""Files of a data set that are not trusted: downloaded once per node, checked by digest, and read from the idx format.

Source of the idx format: MNIST's page, http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import math
import os
import struct
import time
import zlib
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import torch
from torch import Tensor

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


MAX_IDX_BYTES = 1 << 28
"""Of one file, unpacked. MNIST's largest has 47 MB."""
IDX_UINT8 = 8
"""The format's code for numbers of one unsigned byte."""


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of a packed idx file as uint8 of so many dimensions; `Refused` for all that is not one.

    No more is unpacked than the header speaks of, and that is limited: a small file may unpack to a huge one.
    """
    try:
        with gzip.open(path, "rb") as content:
            header = content.read(4 + 4 * dimensions)
            if header[:4] != bytes((0, 0, IDX_UINT8, dimensions)) or len(header) < 4 + 4 * dimensions:
                raise Refused(f"{path} is not an idx file of bytes in {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= MAX_IDX_BYTES:
                raise Refused(f"{path} speaks of {size} bytes: expected 1 to {MAX_IDX_BYTES}")
            values = bytearray(content.read(size))
            if len(values) < size:
                raise Refused(f"{path} is cut off: {len(values)} of {size} bytes")
            if content.read(1):
                raise Refused(f"{path} goes on after its {size} bytes")
    except (OSError, EOFError, zlib.error) as error:  # not there, not gzip, cut off, damaged
        raise Refused(f"{path} cannot be read: {error}") from error
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape)
