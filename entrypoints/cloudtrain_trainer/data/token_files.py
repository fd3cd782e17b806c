"""Language model data from files of tokens, read by memmap in any order.

.npy files contain their type; other files are plain numbers (uint16, as nanoGPT writes them, unless
`dtype` is given), or have llm.c's header.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloudtrain_trainer.rules import Refused, RefusedData
from cloudtrain_trainer.tasks import Draw

SUFFIXES = (".bin", ".npy")
LLM_C_MAGIC = 20240520
LLM_C_HEADER_BYTES = 1024
"""Offset of the tokens (uint16) in llm.c's files, which begin with the magic (int32).

Source: llm.c, dev/data.
"""
HELD_OUT = 10
"""Without files for validation, the last of this many equal parts of each file is used."""


class TokenFiles:
    """Sequences of `context` tokens, and their next tokens, both (batch, context), int64.

    Sequences do not cross the end of a file. Tokens in memory may stand for a file. With a seed,
    sequences begin at other offsets in every epoch. `part`: the range of each file that is used,
    from 0 to 1. `vocabulary`: tokens must be below it; 0: not checked. Raise `Refused` if a file
    cannot be used, or is too short for one sequence.
    """

    def __init__(
        self,
        paths: Sequence[Path | np.ndarray],
        context: int,
        *,
        dtype: str = "uint16",
        seed: int | None = None,
        part: tuple[float, float] = (0.0, 1.0),
        vocabulary: int = 0,
    ) -> None:
        self.context = context
        self.seed = seed
        self.part = part
        self.vocabulary = vocabulary
        self.paths = list(paths)
        self.dtype = np.dtype(dtype)
        self._opened: dict[int, Any] = {}
        self._ends = list(accumulate(self._sequences(file) for file in range(len(self.paths))))
        if not self._ends or not self._ends[-1]:
            names = ", ".join(str(path) for path in self.paths[:3]) or "no file"
            raise Refused(f"{names}: too few tokens for one sequence of {context}")

    def __len__(self) -> int:
        """Return the number of sequences in all files."""
        return self._ends[-1]

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        offset = self._offset(draw.epoch)
        tokens = torch.from_numpy(
            np.stack([self._sequence(index, offset) for index in draw.indices])
        )
        return tokens[:, :-1], tokens[:, 1:]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the opened files, which a loader process opens itself."""
        return {**self.__dict__, "_opened": {}}

    def _sequence(self, index: int, offset: int) -> Any:
        file = bisect_right(self._ends, index)
        first = (index - (self._ends[file - 1] if file else 0)) * self.context + offset
        sequence = self._tokens(file)[first : first + self.context + 1].astype(np.int64)

        if self.vocabulary and int(sequence.max()) >= self.vocabulary:
            raise RefusedData(
                f"{self.paths[file]} has the token {int(sequence.max())} after {first}, and the model"
                f" knows tokens below {self.vocabulary}: is its type {self._tokens(file).dtype}?"
            )

        return sequence

    def _sequences(self, file: int) -> int:
        """Return the sequences of a file, one fewer if their beginnings move."""
        tokens = len(self._tokens(file))
        self._opened.clear()  # an open file of each of thousands would be too many
        return max(0, (tokens - 1) // self.context - (self.seed is not None))

    def _tokens(self, file: int) -> Any:
        if file not in self._opened:
            path = self.paths[file]
            whole = _open(path, self.dtype) if isinstance(path, Path) else path
            begin, end = (int(share * len(whole)) for share in self.part)
            self._opened[file] = whole[begin:end]

        return self._opened[file]

    def _offset(self, epoch: int) -> int:
        if self.seed is None:
            return 0
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return int(torch.randint(self.context, (), generator=generator))


def token_data(
    place: Path | str, context: int, *, dtype: str = "uint16", seed: int = 0, vocabulary: int = 0
) -> tuple[TokenFiles, TokenFiles]:
    """Return (training, validation) data of a folder.

    Files with `val` in their names are for validation, else the end of each file. Raise `Refused`
    if the folder has no token files.
    """
    folder = Path(place)
    if not folder.is_dir():
        raise Refused(
            f"{folder} is not a folder: expected one with files of tokens ({' or '.join(SUFFIXES)})"
        )

    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise Refused(f"{folder} has no files of tokens ({' or '.join(SUFFIXES)})")

    held_out = [path for path in files if "val" in path.name]
    options: dict[str, Any] = {"dtype": dtype, "vocabulary": vocabulary}
    if not held_out:
        return split(files, context, seed=seed, **options)

    train = [path for path in files if path not in held_out]

    return (
        TokenFiles(train, context, seed=seed, **options),
        TokenFiles(held_out, context, **options),
    )


def split(
    files: Sequence[Path | np.ndarray], context: int, *, seed: int, **options: Any
) -> tuple[TokenFiles, TokenFiles]:
    """Return (training, validation) data: the end of each file is for validation.

    `options`: as of `TokenFiles`, which may raise `Refused`.
    """
    share = 1 - 1 / HELD_OUT
    return (
        TokenFiles(files, context, seed=seed, part=(0.0, share), **options),
        TokenFiles(files, context, part=(share, 1.0), **options),
    )


def _open(path: Path, dtype: np.dtype[Any]) -> Any:
    """Return the file's tokens, (n,), not yet read. Raise `Refused` for another kind of file."""
    try:
        if path.suffix == ".npy":
            tokens = np.load(path, mmap_mode="r")
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise Refused(
                    f"{path} has {tokens.dtype} of shape {tokens.shape}: expected whole numbers of"
                    " shape (n,)"
                )

            return tokens

        with path.open("rb") as file:
            magic = file.read(4)
        if magic == LLM_C_MAGIC.to_bytes(4, "little"):
            return np.memmap(path, dtype=np.uint16, mode="r", offset=LLM_C_HEADER_BYTES)

        if path.stat().st_size % dtype.itemsize:
            raise Refused(
                f"{path} has {path.stat().st_size} bytes, not a multiple of {dtype.itemsize}, as"
                f" {dtype} needs"
            )

        return np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read as tokens: {error}") from None
