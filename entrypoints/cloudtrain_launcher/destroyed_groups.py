"""Keeps a process group that a program has destroyed for as long as a DDP model refers to it.
Standard library only.

A model's reducer, which is C++, refers to the group. If the model outlives `destroy_process_group`,
the group ends with it, in a thread that holds Python's lock and joins gloo's threads; one of them
may need the lock to let go of its last work, and the rank hangs for ever (torch 2.13, `~Reducer`
and `ProcessGroupGloo::runLoop`). With a reference of Python's own the reducer's is not the last.
Python drops that later, for which torch releases the lock, or never.
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
_kept: list[Any] = []
_is_watching = False


def keep_those_in_use() -> None:
    """Watch how groups of torch begin and end, now or as soon as the program imports it."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        when_imported(_C10D, _watch)


def _watch(c10d: Any) -> None:
    """Replace functions in the modules that have them by now; every later import gets the new ones."""
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
    """`destroy_process_group`, after which groups are kept that a model refers to."""

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        groups = _registered(c10d)
        try:
            return destroy(*args, **kwargs)
        finally:
            with suppress(Exception):  # a torch that is built otherwise: as without this
                _keep(groups, _registered(c10d))

    return destroy_process_group


def _after_release(init: Callable[..., Any], c10d: Any) -> Callable[..., Any]:
    """`init_process_group`, before which groups are released whose models are gone: they may hold a
    port.
    """

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if _kept:
            with suppress(Exception):
                _keep((), _registered(c10d))
        return init(*args, **kwargs)

    return init_process_group


def _registered(c10d: Any) -> list[Any]:
    """The groups that exist, as torch's own registry has them."""
    try:
        return list(c10d._world.pg_map)
    except Exception:  # noqa: BLE001  (a torch that is built otherwise)
        return []


def _keep(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Keep those that are no longer registered and that a model refers to; let go of those that
    none refers to now.
    """
    registered = {id(group) for group in after}
    used = _used_by_models()
    candidates = {id(group): group for group in (*_kept, *before) if id(group) not in registered}
    _kept[:] = [group for key, group in candidates.items() if used is None or key in used]


def _used_by_models() -> set[int] | None:
    """The identities of the groups that DDP models refer to; None if the program hides objects
    (`gc.freeze`).
    """
    ddp = getattr(sys.modules.get(_DDP), "DistributedDataParallel", None)
    if shutdown.has_frozen_objects():
        return None
    models = (item for item in gc.get_objects() if ddp in type(item).__mro__)
    return {id(vars(model).get("process_group")) for model in models}
