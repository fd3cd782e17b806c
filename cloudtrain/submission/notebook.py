"""`cloudtrain.launch`: run a notebook's function in several ranks. Imports torch when called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from cloudtrain.errors import JobFailed, UsageError


def launch(
    function: Callable[..., Any], *args: Any, processes: int = 2, **kwargs: Any
) -> list[Any]:
    """Call `function(*args, **kwargs)` in `processes` ranks of this machine; return values by rank.

    Inside, `torch.distributed.init_process_group()` finds its peers, and `import cloudtrain_job`
    works as in any job. Without a GPU the ranks are forks: the function may be defined in a cell
    and see all variables, and each rank computes with one thread. With GPUs they are fresh
    processes, one per GPU; a function of a cell then needs cloudpickle.

    Raise JobFailed with the first failing rank and its traceback, UsageError for an impossible
    call.

    >>> losses = cloudtrain.launch(train, 0.001, processes=2)
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise UsageError(f"processes is {processes!r}: expected a whole number from 1 on")
    local_spawn = _module("local_spawn")
    failure = _module("failure")
    _check_gpus(local_spawn.torch, processes)
    try:
        spawn = local_spawn.torch.cuda.is_available()
        outcomes = local_spawn.run(
            function, args, kwargs, processes, entry=_enter, spawn=spawn, flush=_flush
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    cause = failure.root_cause([outcome.error for outcome in outcomes if outcome.error])
    if cause is not None:
        raise JobFailed(f"{failure.one_line(cause)}\n{cause.traceback}".rstrip())
    return [outcome.value for outcome in outcomes]


def _enter(*arguments: Any) -> None:
    """Entry of a rank: a new process can import it by name."""
    _module("local_spawn").run_rank(*arguments)


def _flush() -> None:
    """Write the buffers of all open files of the notebook."""
    shutdown = _module("shutdown")
    shutdown.flush(shutdown.open_files())


def _check_gpus(torch: Any, processes: int) -> None:
    if not torch.cuda.is_available():
        return
    if processes > torch.cuda.device_count():
        message = f"{processes} processes, but this machine shows {torch.cuda.device_count()} GPUs"
        raise UsageError(
            message, hint="one process per GPU, or CUDA_VISIBLE_DEVICES= before torch is imported"
        )


def _module(name: str) -> ModuleType:
    """Return a module of the launcher. Raise UsageError if torch is not installed."""
    try:
        return import_module(f"cloudtrain_launcher.{name}")
    except ImportError as error:
        hint = 'pip install "cloudtrain[train]", in this very environment'
        raise UsageError(
            f"training here needs torch, which is not installed: {error}", hint=hint
        ) from error
