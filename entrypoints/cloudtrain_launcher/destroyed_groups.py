"""Delayed release of destroyed process groups that a DDP model still uses. Standard library only.

A model's C++ reducer refers to the group. If the model outlives `destroy_process_group`, the group
ends with it, in a thread that holds the interpreter's lock and joins gloo's threads. One of them
may need the lock, and the rank hangs (torch 2.13, `~Reducer` and `ProcessGroupGloo::runLoop`). An
additional Python reference prevents that: Python drops it later, without the lock, or never.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cloudtrain_launcher import shutdown
from cloudtrain_launcher.import_hooks import when_imported

_C10D = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed"
_groups_in_use: list[Any] = []
_is_watching = False


def keep_those_in_use() -> None:
    """Watch the start and end of torch's groups, now or once the program imports torch."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        when_imported(_C10D, _watch)


def _watch(c10d: Any) -> None:
    """Replace functions in the modules imported so far; later imports get the new ones."""
    for name, wrap in (
        ("destroy_process_group", _then_keep),
        ("init_process_group", _after_release),
    ):
        function = getattr(c10d, name, None)
        wrapped = function and wrap(function, c10d)
        for module in (c10d, sys.modules.get("torch.distributed")):
            if function is not None and getattr(module, name, None) is function:
                setattr(module, name, wrapped)


def _then_keep(destroy: Callable[..., Any], c10d: Any) -> Callable[..., Any]:
    """Wrap `destroy_process_group` to keep groups that a model refers to."""

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        groups = _registered(c10d)
        try:
            return destroy(*args, **kwargs)
        finally:
            with suppress(Exception):  # a torch with another structure: leave it alone
                _keep(groups, _registered(c10d))

    return destroy_process_group


def _after_release(init: Callable[..., Any], c10d: Any) -> Callable[..., Any]:
    """Wrap `init_process_group` to release groups of deleted models, which may hold a port."""

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if _groups_in_use:
            with suppress(Exception):
                _keep((), _registered(c10d))
        return init(*args, **kwargs)

    return init_process_group


def _registered(c10d: Any) -> list[Any]:
    """Return the existing groups from torch's own registry."""
    try:
        return list(c10d._world.pg_map)
    except Exception:  # noqa: BLE001  (a torch that is built otherwise)
        return []


def _keep(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Keep unregistered groups that a model refers to; release the others."""
    registered = {id(group) for group in after}
    used = _used_by_models()
    candidates = {
        id(group): group for group in (*_groups_in_use, *before) if id(group) not in registered
    }
    _groups_in_use[:] = [group for key, group in candidates.items() if used is None or key in used]


def _used_by_models() -> set[int] | None:
    """Return the ids of the DDP models' groups; None if the program hides objects (`gc.freeze`)."""
    ddp = getattr(sys.modules.get(_DDP), "DistributedDataParallel", None)
    if shutdown.has_frozen_objects():
        return None
    models = (item for item in gc.get_objects() if ddp in type(item).__mro__)
    return {id(vars(model).get("process_group")) for model in models}
