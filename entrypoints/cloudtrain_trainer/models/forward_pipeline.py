"""Forward passes through the stages of a pipeline, for evaluations: batch after batch, all stages
at work.

While a stage computes one batch, the stage before it computes the next. torch's schedules do this
for micro-batches of one fixed size; the batches of an evaluation may have several, and any number
of them may be the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MAX_DIMENSIONS = 8

_Key = tuple[int, tuple[int, ...]]
"""(which of the sender's stages, shape of the batch): the shape and type of the message depend on
them alone.
"""


class ForwardPipeline:
    """The part of one rank, which is at `stage` of `stages` consecutive ranks.

    `parts`: the stages that it holds; with several of them a batch comes by again after the last
    rank.
    """

    def __init__(
        self, parts: Sequence[nn.Module], rank: int, stage: int, stages: int, device: torch.device
    ) -> None:
        self._parts = parts
        self._stage = stage
        self._device = device
        self._is_last = stage == stages - 1
        first = rank - stage
        self._before = first + (stage - 1) % stages
        self._after = first + (stage + 1) % stages
        self._both_ways = stages == 2 and len(parts) > 1
        """Whether two ranks send to each other. Their messages share one stream of NCCL, so that
        those of one stage must all be sent before the first of the other is awaited.
        """
        self._announced: set[_Key] = set()
        self._expected: dict[_Key, tuple[tuple[int, ...], torch.dtype]] = {}
        self._sent: list[tuple[Any, Tensor]] = []
        """Messages on their way, with their tensors, which must outlive them."""

    def outputs(
        self, batches: Sequence[Tensor], precision: Callable[[], AbstractContextManager[Any]]
    ) -> Iterator[Tensor | None]:
        """The model's outputs (batch, ...) for each batch on the last rank, None on others. Called
        by all ranks.

        `batches`: (batch, ...), the same on all ranks, of which the first one computes with them.
        All outputs must be consumed.
        """
        for number, part in enumerate(self._parts):
            outputs: Iterable[Tensor] = self._outputs_of_part(part, number, batches, precision)
            if self._is_last and number == len(self._parts) - 1:
                yield from outputs
                break
            if self._both_ways:
                outputs = list(outputs)
            for batch, tensor in zip(batches, outputs, strict=True):
                self._send_on((number, tuple(batch.shape)), tensor.contiguous())
        if not self._is_last:
            yield from [None] * len(batches)
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _outputs_of_part(
        self,
        part: nn.Module,
        number: int,
        batches: Sequence[Tensor],
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> Iterator[Tensor]:
        """The outputs of one of this rank's stages, computed when they are asked for."""
        for batch in batches:
            sender = number if self._stage else number - 1
            inputs = batch if sender < 0 else self._receive((sender, tuple(batch.shape)))
            with precision():
                outputs: Tensor = part(inputs)
            yield outputs

    def _send_on(self, key: _Key, tensor: Tensor) -> None:
        if key not in self._announced:
            self._announced.add(key)
            self._send(self._header(tensor))
        self._send(tensor)

    def _send(self, tensor: Tensor) -> None:
        self._sent.append((dist.isend(tensor, self._after), tensor))

    def _receive(self, key: _Key) -> Tensor:
        if key not in self._expected:
            header = torch.empty(2 + _MAX_DIMENSIONS, dtype=torch.int64, device=self._device)
            dist.recv(header, self._before)
            dtype, dimensions, *sizes = header.tolist()
            self._expected[key] = tuple(sizes[:dimensions]), _DTYPES[dtype]
        shape, kind = self._expected[key]
        tensor = torch.empty(shape, dtype=kind, device=self._device)
        dist.recv(tensor, self._before)
        return tensor

    def _header(self, tensor: Tensor) -> Tensor:
        """(number of the type, dimensions, sizes, zeros)."""
        unused = [0] * (_MAX_DIMENSIONS - tensor.ndim)
        return torch.tensor(
            [_DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape, *unused], device=self._device
        )
