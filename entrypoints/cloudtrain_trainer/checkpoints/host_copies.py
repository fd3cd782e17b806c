"""Copy tensors to host memory that later checkpoints reuse; GPUs copy while they compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class HostCopies:
    """The latest copies of some tensors, in pinned memory if they come from a GPU.

    A GPU copies in a separate stream, during the next forward and backward pass. `before_update`
    runs before each update of the weights, and keeps it from overtaking the copies.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._streams: dict[torch.device, Any] = {}
        self._events: list[Any] = []

    def copy(
        self, tensors: Mapping[str, Tensor], steady: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return copies by the same names, shapes and dtypes, complete after `wait`.

        The copies of the last call are overwritten. `steady`: the names of tensors that only an
        update of the weights changes; others are copied on the GPU first.
        """
        with torch.no_grad():
            locals_ = {name: _local(value.detach()) for name, value in tensors.items()}
            copies = {name: self._place_for(name, value) for name, value in locals_.items()}
            for device in {value.device for value in locals_.values()}:
                on_device = {
                    name: value for name, value in locals_.items() if value.device == device
                }
                if device.type == "cuda":
                    self._copy_from_gpu(device, on_device, copies, steady)
                else:
                    for name, value in on_device.items():
                        copies[name].copy_(value)
            return {name: _like(tensors[name], copy) for name, copy in copies.items()}

    def wait(self) -> None:
        """Wait until the copies are complete."""
        for event in self._events:
            event.synchronize()

    def before_update(self) -> None:
        """Make each GPU finish its copies before later work. The host does not wait."""
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)

    def _copy_from_gpu(
        self,
        device: torch.device,
        tensors: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        steady: Collection[str],
    ) -> None:
        stream = self._streams.setdefault(device, None) or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._streams[device] = stream
        values = {
            name: value if name in steady else value.clone() for name, value in tensors.items()
        }
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for name, value in values.items():
                copies[name].copy_(value, non_blocking=True)
                # Else its memory might be reused before it is copied.
                value.record_stream(stream)
            self._events = [
                *(event for event in self._events if not event.query()),
                stream.record_event(),
            ]

    def _place_for(self, name: str, value: Tensor) -> Tensor:
        copy = self._kept.get(name)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = torch.empty_like(value, device="cpu", pin_memory=value.device.type == "cuda")
            self._kept[name] = copy
        return copy


def _local(value: Tensor) -> Tensor:
    """Return this rank's shard."""
    return value.to_local() if isinstance(value, DTensor) else value


def _like(value: Tensor, copy: Tensor) -> Tensor:
    """Return the copy of a shard as a shard of the same tensor, in host memory.

    `DTensor.from_local` would move it back to the GPU.
    """
    if not isinstance(value, DTensor):
        return copy
    return DTensor(copy, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]
