"""Errors of sweeps with the engine `ray`, without importing Ray or asking a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from cloudtrain.declaration import declaration_of
from cloudtrain.issues import Issue, Keys
from cloudtrain.planning.plan import Plan

NEEDS = ("ray", "pandas", "pyarrow", "fsspec", "requests")
"""Modules that `import ray.tune` needs; `pip install ray` alone does not install all."""

_AT: Keys = ("sweep", "engine")


def ray_issues(plan: Plan) -> Iterator[Issue]:
    """Yield the reasons why Ray cannot run the trials of a plan."""
    hint = "engine: portable runs trials wherever jobs run"
    label = plan.target.declaration.label
    host = declaration_of(plan.provider)
    if plan.is_rehearsal:
        yield Issue(
            _AT, f"is no part of what runs on {label}, and cannot be rehearsed for it", hint
        )
    elif host.is_remote:
        message = f"runs trials on machines of its own cluster, not as jobs of {label}"
        yield Issue(_AT, message, f"--provider local, from a node of the cluster; {hint}")
    elif not host.runs_on_lent_machines:
        message = (
            f"lends trials some GPUs and cores of a machine, and jobs of {label} would see them all"
        )
        yield Issue(_AT, message, f"--provider local; {hint}")
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        message = f"needs Ray Tune, and this is not installed: {', '.join(missing)}"
        yield Issue(_AT, message, "pip install 'cloudtrain[ray]'")
    if (address := os.environ.get("RAY_ADDRESS", "")).partition("://")[1]:
        message = (
            f"needs its driver on a node of the cluster, and RAY_ADDRESS is {address}, a way in"
            " from outside"
        )
        yield Issue(
            _AT,
            message,
            "start the sweep there, or as a Ray job: ray job submit -- cloudtrain sweep",
        )


def as_checked_here(plan: Plan) -> Plan:
    """Return the job as this machine can check it: without GPUs that Ray provides."""
    if plan.spec.sweep is None or plan.spec.sweep.engine != "ray" or not plan.gpus:
        return plan
    return replace(plan, target=replace(plan.target, gpus=0))
