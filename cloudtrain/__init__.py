"""One job spec for training on SageMaker, Azure ML, Slurm or your own machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.version import __version__ as __version__

"""Version of the package. The build reads it from this line."""

if TYPE_CHECKING:
    from cloudtrain.api.jobs import Job, load, plan, render, submit
    from cloudtrain.api.listing import list_runs
    from cloudtrain.api.lookup import find_run
    from cloudtrain.api.run import Run
    from cloudtrain.api.selected_runs import RunFilter, best_first
    from cloudtrain.errors import (
        CloudtrainError,
        JobFailed,
        RefusedError,
        RunExists,
        RunNotFound,
        SpecError,
        UsageError,
    )
    from cloudtrain.sweeps.planning import plan_sweep, start_sweep
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
    "find_run": "api.lookup",
    "list_runs": "api.listing",
    "Run": "api.run",
    **dict.fromkeys(("RunFilter", "best_first"), "api.selected_runs"),
    "plan_sweep": "sweeps.planning",
    "start_sweep": "sweeps.planning",
    **dict.fromkeys(("Sweep", "find_sweep"), "sweeps.sweep"),
}
"""Module of each public name that is not in `cloudtrain.api.jobs`."""

_OF_JOBS = ("activity", "log_metrics", "log_progress", "log_schedule", "timed")
"""Names of `cloudtrain_job`, the module for programs of jobs."""

__all__ = [
    "CloudtrainError",
    "Job",
    "JobFailed",
    "RefusedError",
    "Run",
    "RunExists",
    "RunFilter",
    "RunNotFound",
    "SpecError",
    "Sweep",
    "UsageError",
    "best_first",
    "find_run",
    "find_sweep",
    "list_runs",
    "load",
    "plan",
    "plan_sweep",
    "render",
    "start_sweep",
    "submit",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, to keep `import cloudtrain` fast."""
    if name in _OF_JOBS:
        raise ImportError(
            f"{name} belongs to cloudtrain_job: in a job's program, import it from there"
        )
    if name not in __all__:
        raise AttributeError(f"module 'cloudtrain' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"cloudtrain.{_HOMES.get(name, 'api.jobs')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
