"""Reads idx files, the format of MNIST, and trusts none of their numbers.

Source: the description of the format on MNIST's page, http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from cloudtrain_trainer.rules import Refused

MOST_BYTES = 1 << 28
"""Of one file, unpacked. MNIST's largest has 47 MB."""
BYTES = 8
"""The format's code for numbers of one unsigned byte."""


def read(path: Path, dimensions: int) -> Tensor:
    """The bytes of a packed idx file as uint8 of so many dimensions; `Refused` for all that is not one.

    No more is unpacked than the header speaks of, and that is limited: a small file may unpack to a huge one.
    """
    try:
        with gzip.open(path, "rb") as content:
            header = content.read(4 + 4 * dimensions)
            if header[:4] != bytes((0, 0, BYTES, dimensions)) or len(header) < 4 + 4 * dimensions:
                raise Refused(f"{path} is not an idx file of bytes in {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= MOST_BYTES:
                raise Refused(f"{path} speaks of {size} bytes: expected 1 to {MOST_BYTES}")
            values = bytearray(content.read(size))
            if len(values) < size:
                raise Refused(f"{path} is cut off: {len(values)} of {size} bytes")
            if content.read(1):
                raise Refused(f"{path} goes on after its {size} bytes")
    except (OSError, EOFError, zlib.error) as error:  # not there, not gzip, cut off, damaged
        raise Refused(f"{path} cannot be read: {error}") from error
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape)
