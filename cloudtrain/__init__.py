"""One job spec, trained on SageMaker, Azure ML or your machine, by the same torchrun entrypoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
"""The one place where the version stands: the package's metadata is read from this line when it is
built.
"""

if TYPE_CHECKING:
    from cloudtrain.api.jobs import Job, load, plan, render, submit, vendor
    from cloudtrain.api.lookup import find_run, list_runs
    from cloudtrain.api.notebook import launch
    from cloudtrain.api.run import Run
    from cloudtrain.errors import (
        CloudtrainError,
        JobFailed,
        RefusedError,
        RunExists,
        RunNotFound,
        SpecError,
        UsageError,
    )
    from cloudtrain.sweeps.planning import plan_sweep
    from cloudtrain.sweeps.start import start_sweep
    from cloudtrain.sweeps.sweep import Sweep, find_sweep

_ERRORS = (
    "CloudtrainError",
    "JobFailed",
    "RefusedError",
    "RunExists",
    "RunNotFound",
    "SpecError",
    "UsageError",
)
_HOMES = {
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("find_run", "list_runs"), "api.lookup"),
    "Run": "api.run",
    "launch": "api.notebook",
    "plan_sweep": "sweeps.planning",
    "start_sweep": "sweeps.start",
    **dict.fromkeys(("Sweep", "find_sweep"), "sweeps.sweep"),
}
"""Where the names above live, when not in `cloudtrain.api.jobs`."""

_OF_JOBS = ("activity", "log_metrics", "log_progress", "log_schedule", "timed")
"""Names of cloudtrain_job, which programs of jobs import."""

__all__ = [
    "CloudtrainError",
    "Job",
    "JobFailed",
    "RefusedError",
    "Run",
    "RunExists",
    "RunNotFound",
    "SpecError",
    "Sweep",
    "UsageError",
    "find_run",
    "find_sweep",
    "launch",
    "list_runs",
    "load",
    "plan",
    "plan_sweep",
    "render",
    "start_sweep",
    "submit",
    "vendor",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import cloudtrain` alone loads next to
    nothing.
    """
    if name in _OF_JOBS:
        raise ImportError(
            f"{name} is for a job's program, which has it from cloudtrain_job, not from cloudtrain"
        )
    if name not in __all__:
        raise AttributeError(f"module 'cloudtrain' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"cloudtrain.{_HOMES.get(name, 'api.jobs')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
