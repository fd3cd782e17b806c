"""The model that training starts with.

Ranks that share a model build it on the meta device, where it has shapes and no memory. Rank 0 also
builds it with values, in host memory, and sends one tensor after the other; each rank keeps its
part. So the numbers are the same, bit for bit, as in a model that one process builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cloudtrain_trainer import state
from cloudtrain_trainer.checkpoints import starting_weights
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused

META = torch.device("meta")
TENSORS_OF_MODULE = ("_parameters", "_buffers", "_modules")


class _Layout(NamedTuple):
    """A parameter or buffer of the whole model."""

    names: list[str]
    """Names of the tensor; a tied one has several."""
    shape: torch.Size
    dtype: torch.dtype


class InitialModel:
    """A model with the initial weights of `--seed` or `--weights`.

    `shares`: whether a rank needs only a part of the model. Then the tensors of `model` are on the
    meta device until `place` gives them memory and values. If the model cannot be built on the meta
    device, every rank builds it whole on the CPU.
    """

    def __init__(
        self,
        create: Callable[[], nn.Module],
        options: Options,
        ranks: Ranks,
        shares: bool,
    ) -> None:
        self._ranks = ranks
        self._layouts: list[_Layout] = []
        self._values: dict[str, Tensor] = {}
        self.model: nn.Module
        whole: nn.Module | None = None
        if not (shares and self._build_on_meta(create)) or ranks.rank == 0:
            state.seed_generators(options.seed)  # all ranks start with the same weights
            whole = create()
        if whole is not None and not self._layouts:
            self.model = whole
        if options.weights is not None:
            line = starting_weights.check(self.model, options.weights, options.partial_weights)
            ranks.log(line)
            if whole is not None:
                starting_weights.read(whole, options.weights)
        if whole is not None and self._layouts:
            self._values = {names[0]: tensor for names, tensor in _named_tensors(whole)}

    def place(self, module: nn.Module, device: torch.device) -> None:
        """Move the model, or a stage of it, to the device, in place, with its values.

        Only this rank's shard of a tensor stays on the device: one tensor at a time is
        whole. Called by all ranks that share the model.
        """
        if not self._layouts:
            module.to(device)
            return

        def on_device(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

        with _same_objects():
            module._apply(on_device)  # type: ignore[no-untyped-call]
        targets = {name: tensor for names, tensor in _named_tensors(module) for name in names}
        for layout in self._layouts:
            whole = self._receive(layout, device)
            target = next((targets[name] for name in layout.names if name in targets), None)
            if target is not None:
                starting_weights.copy_part(target, whole)

    def _build_on_meta(self, create: Callable[[], nn.Module]) -> bool:
        """Build the model without values. Return False if it cannot be built so."""
        try:
            with META:
                model = create()
            name = _hidden_tensor(model)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001  (the model's own mistake comes again when it is built whole)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return self._builds_whole(reason)
        if name:
            return self._builds_whole(f"{name} is a tensor, but not a parameter or buffer")
        self.model = model
        self._layouts = [
            _Layout(names, tensor.shape, tensor.dtype) for names, tensor in _named_tensors(model)
        ]
        return True

    def _builds_whole(self, reason: str) -> bool:
        self._ranks.log(f"every rank builds the whole model in host memory: {reason}")
        return False

    def _receive(self, layout: _Layout, device: torch.device) -> Tensor:
        """Return the values of a tensor, which rank 0 sends."""
        if self._ranks.rank == 0:
            whole = self._values[layout.names[0]].detach().to(device).contiguous()
        else:
            whole = torch.empty(layout.shape, dtype=layout.dtype, device=device)
        if self._ranks.size > 1:
            dist.broadcast(whole, src=0)
        return whole


def _hidden_tensor(model: nn.Module) -> str:
    """Return the name of an attribute with a tensor on the meta device; empty if there is none.

    No state dict has it, so that it would never get values.
    """
    named = {id(tensor) for _, tensor in _named_tensors(model)}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            leaves = [] if name in TENSORS_OF_MODULE else tree_leaves(value)
            if any(_is_on_meta(leaf) and id(leaf) not in named for leaf in leaves):
                return f"{path}.{name}" if path else name
    return ""


def _is_on_meta(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _named_tensors(module: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Yield each parameter and buffer once, with all of its names."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            tensors[id(tensor)] = tensor
            names.setdefault(id(tensor), []).append(name)
    for number, tensor in tensors.items():
        yield names[number], tensor


@contextmanager
def _same_objects() -> Iterator[None]:
    """Keep parameters the same objects when they get memory.

    Tied ones stay tied, and FSDP finds its parameters.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
