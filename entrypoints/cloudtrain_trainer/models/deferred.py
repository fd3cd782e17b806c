"""Builds a model whose large tensors are made later, one at a time, with the numbers that they
would have had at once.

While the model is built, its large tensors are on the meta device: they have shapes and no memory.
What is done to them, such as drawing initial weights, is recorded with the state of the random
generator, and done again when the values of a tensor are wanted. Random numbers are drawn while the
model is built, too, and thrown away. So the numbers do not depend on which tensors are made, or in
which order.

Source of the idea: deferred initialisation in torchdistX (github.com/pytorch/torchdistx).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from cloudtrain_trainer.models.operations import (
    Operation,
    View,
    history,
    repeat,
    tensor_of,
    view_of,
)

MIN_NUMBERS = 4096
"""Smaller tensors are made at once: they need little memory, and some models read them while they
are built.
"""
META = torch.device("meta")
IS_META: Any = Tensor.is_meta.__get__  # type: ignore[attr-defined]
DEVICE: Any = Tensor.device.__get__
OVERWRITES = frozenset({"uniform_", "normal_", "fill_", "zero_"})
"""Operations whose result does not depend on what the tensor was before."""


class Unsupported(Exception):
    """What a model does while it is built cannot be recorded. The message says what."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The context in which a model is built. It records how the model's large tensors are made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._memories: list[StorageWeakRef] = []
        self._numbers: dict[int, int] = {}
        """Address of a memory -> its number. The references above keep an address from being used
        again.
        """
        self._first: list[Operation] = []
        self._last: list[Operation] = []
        """Per memory: the operations that made it, and that changed it last."""

    def view(self, tensor: Tensor) -> View | None:
        """What a tensor is a view of; None if it is not recorded."""
        number = self._numbers.get(tensor.untyped_storage()._cdata) if tensor.is_meta else None
        return None if number is None else view_of(number, tensor)

    def make(self, view: View) -> Tensor:
        """A new tensor on the CPU with the recorded values. The random generator stays as it is."""
        memories: dict[int, torch.UntypedStorage] = {}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for operation in history(self._last[view.memory]):
                repeat(operation, memories)
        return tensor_of(memories, view)

    def living(self) -> set[int]:
        """The numbers of the memories that a tensor still refers to."""
        return {number for number, memory in enumerate(self._memories) if not memory.expired()}  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        inputs = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if not any(map(self.view, inputs)) and (inputs or not _makes_large(func, args, named)):
            return func(*args, **named)
        if _device(named) not in ("cpu", "meta"):
            raise Unsupported(f"{func} on {named['device']}")
        state = self._draw(func, args, named)
        known = {leaf.untyped_storage()._cdata for leaf in inputs}
        on_meta = {**_to_meta(named), **({"device": META} if "device" in named else {})}
        try:
            results = func(*_to_meta(args), **on_meta)
        except (NotImplementedError, RuntimeError):
            if func._schema.is_mutable:
                raise
            return func(
                *self._made(args), **self._made(named)
            )  # what the model does next depends on values
        self._record(func, args, named, state, results, known)
        return results

    def _draw(self, func: Any, args: Any, named: dict[str, Any]) -> Tensor | None:
        """Draw the random numbers of an operation, as if it were done. Returns the generator's
        state before it.
        """
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        state: Tensor = (named.get("generator") or torch.default_generator).get_state()
        arguments = tree_map_only(Tensor, self._zeros_like, args)
        func(*arguments, **{**named, **({"device": "cpu"} if "device" in named else {})})
        return state

    def _zeros_like(self, tensor: Tensor) -> Tensor:
        """On the CPU, with the same strides, which decide how numbers are drawn; in memory that is
        used again.
        """
        needed = tensor.itemsize * (
            1 + sum((n - 1) * by for n, by in zip(tensor.shape, tensor.stride(), strict=True))
        )
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        zeros = self._scratch[:needed].view(tensor.dtype).as_strided(tensor.size(), tensor.stride())
        return zeros.zero_()

    def _record(
        self,
        func: Any,
        args: Any,
        named: dict[str, Any],
        state: Tensor | None,
        results: Any,
        known: set[int],
    ) -> None:
        found = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
        new = [leaf.untyped_storage()._cdata not in known for leaf in found]
        changed = self._changed(func, args, named)
        if not changed and not any(new):
            return  # a view
        named = {**named, **_explicit_dtype(func, args, named, found)}
        before = (
            [self._first[view.memory] for view in changed]
            if _overwrites(func, args)
            else self._latest(args, named)
        )
        arguments, others = tree_map_only(Tensor, self._argument, (args, named))
        made = [
            self._new(tensor) if is_new else None for tensor, is_new in zip(found, new, strict=True)
        ]
        operation = Operation(self._operations, func, arguments, others, state, before, made)
        self._operations += 1
        for view in changed:
            self._last[view.memory] = operation
        for _ in filter(None, made):
            self._first.append(operation)
            self._last.append(operation)

    def _made(self, arguments: Any) -> Any:
        """With values in place of recorded tensors."""
        return tree_map_only(
            Tensor, lambda t: self.make(view) if (view := self.view(t)) else t, arguments
        )

    def _new(self, tensor: Tensor) -> View:
        memory = tensor.untyped_storage()
        self._numbers[memory._cdata] = len(self._memories)
        self._memories.append(StorageWeakRef(memory))  # type: ignore[no-untyped-call]
        return view_of(len(self._memories) - 1, tensor)

    def _latest(self, args: Any, named: dict[str, Any]) -> list[Operation]:
        views = [self.view(leaf) for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        return [self._last[view.memory] for view in views if view is not None]

    def _changed(self, func: Any, args: Any, named: dict[str, Any]) -> list[View]:
        """What an operation changes in place. Raises `Unsupported` if that is not recorded."""
        changed = []
        for position, declared in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else named.get(declared.name)
            if (
                declared.alias_info is not None
                and declared.alias_info.is_write
                and isinstance(value, Tensor)
            ):
                view = self.view(value)
                if view is None:
                    raise Unsupported(
                        f"{func} changes a tensor that has values by one that has none yet"
                    )
                changed.append(view)
        return changed

    def _argument(self, tensor: Tensor) -> View | Tensor:
        view = self.view(tensor)
        if view is not None:
            return view
        if tensor.is_meta or tensor.numel() >= MIN_NUMBERS or tensor.device.type != "cpu":
            raise Unsupported(f"weights are taken from a tensor of shape {tuple(tensor.shape)}")
        return tensor.detach().clone()


def record(create: Callable[[], nn.Module]) -> tuple[nn.Module, Recording]:
    """A model whose large parameters and buffers are on the meta device, and how they are made.

    Raises `Unsupported`, or what the model itself raises.
    """
    recording = Recording()
    with recording, _OnCpu(recording):
        model = create()
    recording._scratch = torch.empty(0, dtype=torch.uint8)
    return model, recording


class _OnCpu(TorchFunctionMode):
    """Recorded tensors say that they are on the CPU: much code leaves those on the meta device
    without values.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (IS_META, DEVICE) and self._recording.view(args[0]):
            return False if func == IS_META else torch.device("cpu")
        return func(*args, **(kwargs or {}))


def _makes_large(func: Any, args: Any, named: dict[str, Any]) -> bool:
    """Whether a function without tensors among its arguments makes a large one on the CPU."""
    if _device(named) != "cpu" or all(
        argument.name != "device" for argument in func._schema.arguments
    ):
        return False
    named.pop("pin_memory", None)
    trial = func(*args, **{**named, "device": META})
    return isinstance(trial, Tensor) and trial.numel() >= MIN_NUMBERS


def _device(named: dict[str, Any]) -> str:
    return torch.device(named.get("device") or "cpu").type


def _to_meta(arguments: Any) -> Any:
    return tree_map_only(
        Tensor, lambda tensor: tensor if tensor.is_meta else tensor.to(META), arguments
    )


def _explicit_dtype(
    func: Any, args: Any, named: dict[str, Any], found: list[Tensor]
) -> dict[str, Any]:
    """The dtype of a new tensor that has torch's default one, which may be another one later."""
    has_inputs = any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, named)))
    takes = any(argument.name == "dtype" for argument in func._schema.arguments)
    return (
        {"dtype": found[0].dtype} if takes and not has_inputs and named.get("dtype") is None else {}
    )


def _overwrites(func: Any, args: Any) -> bool:
    """Whether an operation replaces all that is in the memory of its first argument, whatever it
    was.
    """
    name = func._schema.name.removeprefix("aten::")
    if name not in OVERWRITES or any(isinstance(leaf, Tensor) for leaf in tree_leaves(args[1:])):
        return False
    return bool(args[0].numel() * args[0].itemsize == args[0].untyped_storage().nbytes())
