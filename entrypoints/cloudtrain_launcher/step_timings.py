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

_rank_pid = 0


def report_steps() -> None:
    """Have this process report its step times once it uses a DataLoader."""
    global _rank_pid
    _rank_pid = os.getpid()

    for name, patch in _PATCHES.items():
        if name in sys.modules:
            _try(patch, sys.modules[name])

    sys.meta_path.insert(0, _PatchOnImport())


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
    module.DataLoader.__iter__ = _counted(module.DataLoader.__iter__, takes_batch=False)
    batches = module._BaseDataLoaderIter
    batches.__next__ = _counted(batches.__next__, takes_batch=True)


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


def _counted(method: Callable[[Any], Any], *, takes_batch: bool) -> Callable[[Any], Any]:
    """Return a method of a loader that counts its time as a wait for data."""

    @functools.wraps(method)
    def counted(self: Any) -> Any:
        if not _is_rank() or cloudtrain_job.waits_for_data():
            return method(self)  # `timed` counts already

        trains = sys.modules["torch"].is_grad_enabled()
        _try(cloudtrain_job.end_step, "data" if trains else "evaluation")
        has_batch = False
        try:
            result = method(self)
            has_batch = takes_batch
        finally:
            if not has_batch:
                _try(cloudtrain_job.end_step, "other")
            elif trains:
                _try(cloudtrain_job.end_step, "compute")

        return result

    return counted


def _is_rank() -> bool:
    """Return whether this is the rank's main thread, not a loader's worker or another thread."""
    return os.getpid() == _rank_pid and threading.current_thread() is threading.main_thread()


def _try(function: Callable[[Any], Any], argument: Any) -> None:
    """Call it: an error must not fail the program."""
    with suppress(Exception):
        function(argument)
