"""Short runs of a job with different numbers of ranks: plans and measurements.

    plans = scaled_plans(make, base, (1, 2, 4))

`make` makes the plan of the job with overrides; `base` is the plan without any.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.diagnosis.scaling import Measurement
from cloudtrain.diagnosis.slowness import diagnose_slowness
from cloudtrain.errors import RefusedError, UsageError
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.runs.state import RunState, explain
from cloudtrain.submission.preflight import preflight, raise_errors
from cloudtrain.submission.run import Run
from cloudtrain_launcher.packages.bounded_files import read_regular_text

METRIC = "samples_per_s"
"""Metric of the throughput over all ranks."""

WARM_UP_REPORTS = 2
REPORTS = 10
"""Number of first reports to skip, and of the report that ends a run."""

THREADS = "OMP_NUM_THREADS"
"""Variable with the number of threads of torch and its libraries."""

MAX_SECONDS = 1800
"""Maximum seconds of a measuring run, unless the job has a shorter limit."""

MakePlan = Callable[[Sequence[str]], Plan]
"""Function from overrides, `KEY=VALUE`, to a plan with a new run id."""


def check_reports(base: Plan, earlier: Run | None) -> None:
    """Raise UsageError for a user's program that apparently does not report its throughput."""
    if base.spec.entrypoint is None or METRIC in base.spec.metrics:
        return
    if earlier is not None and any(METRIC in point.values for point in earlier.metrics()):
        return
    path = Path(base.context.source.root, base.spec.entrypoint)
    try:
        if path.suffix != ".py" or METRIC in read_regular_text(path, errors="replace"):
            return
    except OSError:
        return
    hint = (
        "two lines report it: from cloudtrain_job import log_metrics; "
        f"log_metrics(step=step, {METRIC}=samples_of_all_ranks / seconds) every few steps"
    )
    raise UsageError(
        f"{base.spec.entrypoint} does not report {METRIC}, the measure of the comparison", hint=hint
    )


def scaled_plans(make: MakePlan, base: Plan, sizes: Sequence[int]) -> dict[int, Plan]:
    """Return a checked plan for each number of ranks. Raise UsageError or RefusedError."""
    plans = {}
    for ranks in sizes:
        try:
            plan = scaled_plan(make, base, ranks, most=max(sizes))
            raise_errors(preflight(plan))
        except (UsageError, RefusedError) as error:
            raise type(error)(f"with {ranks} ranks: {error.render()}") from None
        plans[ranks] = plan
    return plans


def scaled_plan(make: MakePlan, base: Plan, ranks: int, *, most: int) -> Plan:
    """Return the plan of a run that measures the job with `ranks`. May raise UsageError.

    `most`: the largest number of ranks on the curve.
    """
    overrides = [*_resources(base, ranks), "limits.restarts=0"]
    longest = base.spec.limits.max_runtime
    if longest is None or longest > MAX_SECONDS:
        overrides.append(f"limits.max_runtime={MAX_SECONDS} s")
    if base.spec.checkpoints.uri:
        overrides.append("checkpoints.uri=null")
    if (threads := threads_each(base, most)) is not None:
        overrides.append(f"env.{THREADS}={threads}")
    plan = make(overrides)
    rules = TrialRules(
        trial=0, metric=METRIC, goal="maximize", rungs=(), eta=2, until=REPORTS, measures=True
    )
    return replace(plan, context=replace(plan.context, trial=rules))


def _resources(base: Plan, ranks: int) -> list[str]:
    """Return the overrides of nodes and processes. A job of one node stays on one node."""
    nodes = base.spec.resources.nodes
    per_node = base.processes
    if nodes == 1 or ranks <= per_node:
        nodes = 1
        per_node = ranks
    elif ranks % per_node:
        hint = f"numbers up to {per_node}, and whole multiples of it"
        raise UsageError(
            f"the job has {per_node} on a node, which is no whole number of nodes", hint=hint
        )
    else:
        nodes = ranks // per_node
    gpus = [f"resources.gpus={per_node}"] if base.gpus else []
    return [f"resources.nodes={nodes}", f"resources.processes={per_node}", *gpus]


def threads_each(base: Plan, most: int) -> int | None:
    """Return threads per rank: this machine's cores divided by the most ranks.

    Return None if ranks have GPUs or other machines, or if the job sets it. By default fewer ranks
    have more threads each, which would make the curve unfair.
    """
    cores = cores_shared(base)
    return None if cores is None or THREADS in base.spec.env else max(1, cores // most)


def cores_shared(plan: Plan) -> int | None:
    """Return the cores that the ranks share on this machine; None with GPUs or other machines."""
    if plan.gpus or plan.host.declaration.is_remote:
        return None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def measurement_of(
    run: Run, state: RunState, ranks: int, usd_per_hour: float | None
) -> Measurement:
    """Return the measurement of one run, or the reason for a missing one."""
    measurement = Measurement(ranks=ranks, usd_per_hour=usd_per_hour, run=run.id)
    if rates := _reported_rates(run):
        return replace(
            measurement,
            windows=rates,
            communication=_communication(state),
            slowness=diagnose_slowness(run.folder, state),
        )
    is_silent = state.state == "succeeded"
    return replace(measurement, failure=f"it reported no {METRIC}" if is_silent else explain(state))


def _reported_rates(run: Run) -> tuple[float, ...]:
    """Return the reported throughputs without the first ones."""
    values = [value for point in run.metrics() if (value := point.values.get(METRIC)) is not None]
    counted = values[WARM_UP_REPORTS:] if len(values) > WARM_UP_REPORTS else []
    return tuple(value for value in counted if math.isfinite(value) and value > 0)


def _communication(state: RunState) -> float | None:
    """Return the mean share of communication over the ranks, or None without step times."""
    totals = state.step_times.totals().values()
    shares = [sums.share("communication") for sums in totals if "communication" in sums.seconds]
    return sum(shares) / len(shares) if shares else None
