"""Copy tensors to host memory that later checkpoints reuse; GPUs copy while they compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cloudtrain_trainer.trees import local_part

STAGED: tuple[str, ...] = ("cuda",)
"""Device types whose tensors pass through buffers in a thread."""
BUFFER_BYTES = 64 << 20
"""Size of each of the two buffers."""


class HostCopies:
    """The latest copies of some tensors in host memory that the system can swap.

    Tensors of a GPU pass through two small pinned buffers in a thread, during the next forward and
    backward pass: pinned copies of all would take up to twice their bytes, since torch rounds each
    up to a power of two. `before_update` runs before each update of the weights.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._buffers: list[Tensor] = []
        self._streams: dict[torch.device, Any] = {}
        self._thread = ThreadPoolExecutor(1, "checkpoint copies")
        self._copying: Future[None] | None = None

    def copy(
        self, tensors: Mapping[str, Tensor], steady: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return copies by the same names, shapes and dtypes, complete after `wait`.

        The copies of the last call are overwritten. `steady`: the names of tensors that only an
        update of the weights changes; others are copied on the GPU first.
        """
        self.wait()
        with torch.no_grad():
            locals_ = {name: local_part(value.detach()) for name, value in tensors.items()}
            copies = {name: self._place_for(name, value) for name, value in locals_.items()}
            pieces: list[tuple[Tensor, Tensor]] = []
            for name, value in locals_.items():
                if value.device.type in STAGED:
                    source = value if name in steady else value.clone()
                    pieces += _pieces(source, copies[name])
                else:
                    copies[name].copy_(value)
        if pieces:
            self._prepare({source.device for source, _ in pieces})
            self._copying = self._thread.submit(self._copy_pieces, pieces)
        return {name: _like(tensors[name], copy) for name, copy in copies.items()}

    def wait(self) -> None:
        """Wait until the copies are complete. Raises the error of the thread."""
        if self._copying is not None:
            self._copying.result()

    def before_update(self) -> None:
        """Wait as well: an update must not overtake the copies."""
        self.wait()

    def _prepare(self, devices: Collection[torch.device]) -> None:
        """Let the copies begin after the work that each GPU has now."""
        for device in devices:
            if device.type == "cuda":
                stream = self._streams.get(device) or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._streams[device] = stream
                stream.wait_stream(torch.cuda.current_stream(device))
        if not self._buffers:
            pinned = any(device.type == "cuda" for device in devices)
            self._buffers = [
                torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)
            ]

    @torch.no_grad()
    def _copy_pieces(self, pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy each piece into one buffer while the piece before leaves the other."""
        filled: tuple[Any, Tensor, Tensor] | None = None
        for number, (source, target) in enumerate(pieces):
            buffer = self._buffers[number % 2][: len(source)]
            event = self._fill(buffer, source)
            if filled is not None:
                _empty(*filled)
            filled = event, buffer, target
        if filled is not None:
            _empty(*filled)

    def _fill(self, buffer: Tensor, source: Tensor) -> Any:
        """Begin to copy; return the event of its end, or None if it is done."""
        stream = self._streams.get(source.device)
        if stream is None:
            buffer.copy_(source)
            return None
        torch.cuda.set_device(source.device)  # a new thread uses the first GPU
        with torch.cuda.stream(stream):
            buffer.copy_(source, non_blocking=True)
            return stream.record_event()

    def _place_for(self, name: str, value: Tensor) -> Tensor:
        copy = self._kept.get(name)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = self._kept[name] = torch.empty_like(value, device="cpu")
        return copy


def _empty(event: Any, buffer: Tensor, target: Tensor) -> None:
    if event is not None:
        event.synchronize()
    target.copy_(buffer)


def _pieces(source: Tensor, copy: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the bytes of a tensor, and their places in its copy, in parts that fit a buffer."""
    if source.stride() != copy.stride():  # a part of a larger tensor, or an expanded one
        source = torch.empty_like(copy, device=source.device).copy_(source)
    return list(zip(_parts(source), _parts(copy), strict=True))


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Return the bytes of a tensor without gaps, in the order of its memory."""
    values = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return torch.split(values, BUFFER_BYTES) if len(values) else ()


def _like(value: Tensor, copy: Tensor) -> Tensor:
    """Return the copy of a shard as a shard of the same tensor, in host memory.

    `DTensor.from_local` would move it back to the GPU.
    """
    if not isinstance(value, DTensor):
        return copy
    return DTensor(copy, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]
