"""One job spec, trained on SageMaker, Azure ML or the machine in front of you, by the same torchrun entrypoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cloudtrain.api import Job, Run, find_run, list_runs, load, plan, render, submit
    from cloudtrain.errors import CloudtrainError

__all__ = ["CloudtrainError", "Job", "Run", "find_run", "list_runs", "load", "plan", "render", "submit"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import cloudtrain` alone loads next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'cloudtrain' has no attribute {name!r}")
    from importlib import import_module

    module = import_module("cloudtrain.errors" if name == "CloudtrainError" else "cloudtrain.api")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
