"""Untrusted data set files: downloaded once per node, verified, and parsed from idx.

Source of the idx format: the page of MNIST, http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

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

from cloudtrain_launcher.file_locks import locked
from cloudtrain_trainer.rules import Refused

READ_TIMEOUT_SECONDS = 30
DOWNLOAD_TIMEOUT_SECONDS = 300
"""Limit for the whole file; the one above is for each read."""
BLOCK_BYTES = 1 << 16


def cache_folder(name: str) -> Path:
    """Return the path of a cache for downloads, in $XDG_CACHE_HOME, else in ~/.cache.

    It may not exist.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloudtrain" / name


def fetch(address: str, folder: Path, size: int, sha256: str, hint: str) -> Path:
    """Download the file at `address` into `folder`, unless it exists; return its path.

    `size`: maximum bytes to download. `sha256`: checked each time. `hint`: what the user can do,
    for the message of `Refused`. A lock makes one rank of a node download while the others wait.
    """
    path = folder / address.rpartition("/")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            if path.is_file() and _digest(path.read_bytes()) == sha256:
                return path
            content = _download(address, size)
            if _digest(content) != sha256:
                raise Refused(
                    f"{address} has changed: its sha256 is {_digest(content)}, expected {sha256};"
                    f" {hint}"
                )
            temporary = path.with_name(path.name + ".tmp")
            temporary.write_bytes(content)
            temporary.replace(path)
    except (OSError, HTTPException) as error:
        raise Refused(f"{address} could not be downloaded to {folder}: {error}; {hint}") from error
    return path


def _download(address: str, size: int) -> bytes:
    """Return the content, at most one byte more than `size`.

    OSError if the server cannot be reached or takes too long.
    """
    content = bytearray()
    until = time.monotonic() + DOWNLOAD_TIMEOUT_SECONDS
    with urlopen(address, timeout=READ_TIMEOUT_SECONDS) as answer:
        while len(content) <= size:
            block = answer.read1(min(BLOCK_BYTES, size + 1 - len(content)))
            if not block:
                break
            content += block
            if time.monotonic() > until:
                raise OSError(f"it took longer than {DOWNLOAD_TIMEOUT_SECONDS} seconds")
    return bytes(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


MAX_IDX_BYTES = 1 << 28
"""The largest file, unpacked. MNIST's largest has 47 MB."""
IDX_UINT8 = 8
"""The format's code for unsigned bytes."""


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the content of a gzipped idx file: uint8, of the shape in its header.

    `dimensions`: number of dimensions that the shape must have. At most the announced bytes, and at
    most `MAX_IDX_BYTES`, are unpacked: a small file may unpack to a huge one. Raise `Refused` if it
    is not such a file.
    """
    try:
        with gzip.open(path, "rb") as content:
            header = content.read(4 + 4 * dimensions)
            if (
                header[:4] != bytes((0, 0, IDX_UINT8, dimensions))
                or len(header) < 4 + 4 * dimensions
            ):
                raise Refused(f"{path} is not an idx file of bytes in {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= MAX_IDX_BYTES:
                raise Refused(f"{path} announces {size} bytes: expected 1 to {MAX_IDX_BYTES}")
            values = bytearray(content.read(size))
            if len(values) < size:
                raise Refused(f"{path} is truncated: {len(values)} of {size} bytes")
            if content.read(1):
                raise Refused(f"{path} has data after its {size} bytes")
    except (OSError, EOFError, zlib.error) as error:  # missing, not gzip, truncated, damaged
        raise Refused(f"{path} cannot be read: {error}") from error
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape)
