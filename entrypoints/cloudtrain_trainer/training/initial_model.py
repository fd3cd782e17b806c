"""The model that training starts with. Ranks that share one make only their own parts of it,
whatever it is.

The numbers are those of a model that one process builds whole, bit for bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cloudtrain_trainer import state
from cloudtrain_trainer.checkpoints import starting_weights
from cloudtrain_trainer.models.deferred import Recording, Unsupported, record
from cloudtrain_trainer.models.operations import View
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import Refused


class InitialModel:
    """A model with the initial weights of `--seed`, or those of `--weights`.

    `shares`: whether this rank needs only a part of the model. Then large tensors of `model` are on
    the meta device until `place` makes them. A model that cannot be built so is built whole, on the
    CPU, which `say` is told.
    """

    def __init__(
        self,
        create: Callable[[], nn.Module],
        options: Options,
        shares: bool,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._recording = Recording()
        self._views = dict[str, View]()
        state.seed_generators(options.seed)  # all ranks start with the same weights
        if not (shares and self._record(create, say)):
            self.model = create()
        if options.weights is not None:
            say(starting_weights.check(self.model, options.weights, options.partial_weights))
            if not self._views:
                starting_weights.read(self.model, options.weights)

    def _record(self, create: Callable[[], nn.Module], say: Callable[[str], None]) -> bool:
        """Whether the model could be built without its large tensors."""
        try:
            model, recording = record(create)
            self._views = _views(model, recording)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001  (a mistake of the model itself comes again when it is built whole)
            first = (str(error).splitlines() or [type(error).__name__])[0]
            say(
                "every rank builds the whole model in host memory before it keeps its part:"
                f" {first}"
            )
            state.seed_generators(self._options.seed)
            return False
        self.model = model
        self._recording = recording
        return True

    def place(self, module: nn.Module, device: torch.device) -> None:
        """Move the model, or a stage of it, to the device, in place; what has no values yet is made
        there.

        Of a tensor that is sharded, only this rank's shard is made there: one tensor at a time is
        whole, on the CPU.
        """
        if not self._views:
            module.to(device)
            return

        def on_device(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

        with _same_objects():
            module._apply(on_device)  # type: ignore[no-untyped-call]
        path = self._options.weights
        given = set() if path is None else starting_weights.read(module, path)
        for names, tensor in _named_tensors(module):
            if not given.intersection(names) and names[0] in self._views:
                starting_weights.copy_part(tensor, self._recording.make(self._views[names[0]]))


def _views(model: nn.Module, recording: Recording) -> dict[str, View]:
    """How each large parameter and buffer is made, by name. Raises `Unsupported` if a tensor cannot
    be made later.
    """
    found = {}
    for names, tensor in _named_tensors(model):
        view = recording.view(tensor)
        if view is not None:
            found.update(dict.fromkeys(names, view))
        elif tensor.is_meta:
            raise Unsupported(f"{names[0]} is on the meta device, without values")
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and (view := recording.view(value)):
                vars(module)[name] = recording.make(view)
    gc.collect()
    if recording.living() - {view.memory for view in found.values()}:
        raise Unsupported("the model keeps a tensor elsewhere than in its parameters and buffers")
    return found


def _named_tensors(module: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Each parameter and buffer once, with all of its names: a tied one has several."""
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
    """Parameters that get memory stay the same objects, so that tied ones stay tied, and FSDP knows
    its own.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
