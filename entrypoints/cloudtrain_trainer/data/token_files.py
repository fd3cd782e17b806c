"""Language model data from the bytes of text files, read by memmap in any order, or from arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw

HELD_OUT = 10
"""The last of this many equal parts of each file is for validation."""


class TokenFiles:
    """Sequences of `context` tokens, and their next tokens, both (batch, context), int64.

    The bytes of a file are its tokens; an array of tokens may stand for a file. Sequences do not
    cross the end of a file. With a seed, they begin at other offsets in every epoch. `part`: the
    range of each file that is used, from 0 to 1. Raise `Refused` if a file cannot be read, or if
    all are too short for one sequence.
    """

    def __init__(
        self,
        files: Sequence[Path | np.ndarray],
        context: int,
        *,
        seed: int | None = None,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.context = context
        self.seed = seed
        self.part = part
        self.files = list(files)
        self._opened: dict[int, Any] = {}
        self._ends = list(accumulate(self._sequences(file) for file in range(len(self.files))))
        if not self._ends or not self._ends[-1]:
            names = ", ".join(str(path) for path in self.files[:3]) or "no file"
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
        return self._tokens(file)[first : first + self.context + 1].astype(np.int64)

    def _sequences(self, file: int) -> int:
        """Return the sequences of a file, one fewer if their beginnings move."""
        tokens = len(self._tokens(file))
        self._opened.clear()  # an open file of each of thousands would be too many
        return max(0, (tokens - 1) // self.context - (self.seed is not None))

    def _tokens(self, file: int) -> Any:
        if file not in self._opened:
            place = self.files[file]
            try:
                whole = np.memmap(place, mode="r") if isinstance(place, Path) else place
            except (OSError, ValueError) as error:
                raise Refused(f"{place} cannot be read: {error}") from None

            begin, end = (int(share * len(whole)) for share in self.part)
            self._opened[file] = whole[begin:end]

        return self._opened[file]

    def _offset(self, epoch: int) -> int:
        if self.seed is None:
            return 0
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return int(torch.randint(self.context, (), generator=generator))


def split(
    files: Sequence[Path | np.ndarray], context: int, *, seed: int
) -> tuple[TokenFiles, TokenFiles]:
    """Return (training, validation) data: the end of each file is for validation.

    Raise `Refused` as `TokenFiles`.
    """
    share = 1 - 1 / HELD_OUT
    return (
        TokenFiles(files, context, seed=seed, part=(0.0, share)),
        TokenFiles(files, context, part=(share, 1.0)),
    )
