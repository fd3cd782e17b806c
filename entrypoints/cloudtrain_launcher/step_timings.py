"""Step times of a program that reports none: waits of torch's DataLoader, communication of DDP.

Its classes are patched once the program imports them, so that torch is not imported before it. A
step is a batch that the main thread takes while gradients are enabled; a batch without gradients is
an evaluation's. The events are those of `cloudtrain_job.timed`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import cloudtrain_job

_rank_thread = 0
"""The rank's main thread; 0 in a fork of the rank, such as a loader's worker."""


def report_steps() -> None:
    """Have this process report its step times once its main thread, the caller, uses a DataLoader."""
    _count_in(threading.get_ident())
    os.register_at_fork(after_in_child=lambda: _count_in(0))

    for name, patch in _PATCHES.items():
        if name in sys.modules:
            _try(patch, sys.modules[name])

    sys.meta_path.insert(0, _PatchOnImport())


def _count_in(thread: int) -> None:
    global _rank_thread
    _rank_thread = thread


class _PatchOnImport:
    """Finder of the modules to patch, whose loaders patch them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return None for other modules, and for one that cannot be patched."""
        with suppress(Exception):
            if name in _PATCHES:
                return _spec_with(_PATCHES[name], PathFinder.find_spec(name, path, target))

        return None


def _spec_with(patch: Callable[[Any], None], spec: Any) -> ModuleSpec:
    """Return a module's spec whose loader patches the module after its execution."""
    execute = spec.loader.exec_module

    def execute_and_patch(module: Any) -> None:
        execute(module)
        _try(patch, module)

    spec.loader.exec_module = execute_and_patch
    found: ModuleSpec = spec
    return found


def _patch_loader(module: Any) -> None:
    trains = module.torch.is_grad_enabled
    loader = module.DataLoader
    loader.__iter__ = _counted(loader.__iter__, trains, takes_batch=False)
    batches = module._BaseDataLoaderIter
    batches.__next__ = _counted(batches.__next__, trains, takes_batch=True)


def _patch_ddp(module: Any) -> None:
    model = module.DistributedDataParallel
    initialize = model.__init__

    @functools.wraps(initialize)
    def initialize_and_watch(self: Any, *args: Any, **options: Any) -> None:
        initialize(self, *args, **options)
        _try(cloudtrain_job.watch, self)

    model.__init__ = initialize_and_watch


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data.dataloader": _patch_loader,
    "torch.nn.parallel.distributed": _patch_ddp,
}


def _counted(
    method: Callable[[Any], Any], trains: Callable[[], bool], *, takes_batch: bool
) -> Callable[[Any], Any]:
    """Return a method of a loader that counts its time as a wait for data.

    Each batch passes here, so that it calls little: 1 % of a step of 1 ms are 10 µs.
    """

    @functools.wraps(method)
    def counted(self: Any) -> Any:
        if threading.get_ident() != _rank_thread or cloudtrain_job.waits_for_data():
            return method(self)  # a loader's worker or a thread; or `timed` counts already

        is_training = trains()
        _end_step("data" if is_training else "evaluation")
        next_phase = "other"
        try:
            result = method(self)
            if takes_batch:
                next_phase = "compute" if is_training else ""
        finally:
            if next_phase:
                _end_step(next_phase)

        return result

    return counted


def _end_step(phase: str) -> None:
    """End a step: an error must not fail the program."""
    try:  # noqa: SIM105  (`suppress` takes as long as the rest)
        cloudtrain_job.end_step(phase)
    except Exception:  # noqa: BLE001
        pass


def _try(function: Callable[[Any], Any], argument: Any) -> None:
    """Call it: an error must not fail the program."""
    with suppress(Exception):
        function(argument)
