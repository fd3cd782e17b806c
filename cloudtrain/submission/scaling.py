"""Short runs of one job with different numbers of ranks: their plans, their order, and what each
has measured.

plans = scaled_plans(make, base, (1, 2, 4), weak=False)
`make` makes the plan of the job with overrides; `base` is the plan without any.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.diagnosis.run_slowness import diagnose_slowness
from cloudtrain.diagnosis.scaling import Measurement
from cloudtrain.errors import RefusedError, UsageError
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.runs.failure import explain
from cloudtrain.runs.run_ids import new_run_id
from cloudtrain.runs.state import RunState
from cloudtrain.submission.preflight import preflight, raise_errors
from cloudtrain.submission.run import Run
from cloudtrain_launcher.packages.bounded_files import read_regular_text

METRIC = "samples_per_s"
"""The throughput that each run reports, over all ranks."""

WARM_UP_REPORTS = 2
REPORTS = 10
"""First reports that do not count, and the report after which a run ends."""

THREADS = "OMP_NUM_THREADS"
"""The variable by which torch and the libraries below it take their number of threads."""

MAX_SECONDS = 1800
"""A measuring run is stopped after so long, unless the job has a shorter limit."""

MakePlan = Callable[[Sequence[str]], Plan]
"""A plan of the job with these overrides, `KEY=VALUE`; each has a run id of its own."""


def turns(sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Turn and number of ranks, in the order in which they run: there and back again, so that a
    machine that becomes slower or faster meanwhile favours none.
    """
    for turn in range(count):
        for ranks in sizes if turn % 2 == 0 else reversed(sizes):
            yield turn, ranks


def check_reports(base: Plan, earlier: Run | None) -> None:
    """UsageError for a program of one's own that does not report its throughput, as far as can be
    seen before.
    """
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
        f"{base.spec.entrypoint} does not report {METRIC}, by which ranks are compared", hint=hint
    )


def scaled_plans(
    make: MakePlan, base: Plan, sizes: Sequence[int], *, weak: bool
) -> dict[int, Plan]:
    """A plan for each number of ranks, all checks passed. UsageError or RefusedError with all that
    stands in the way, of all numbers of ranks together.
    """
    values = {}
    problems = dict[str, list[int]]()
    is_usage = False
    for ranks in sizes:
        try:
            plan = scaled_plan(make, base, ranks, most=max(sizes), weak=weak)
            raise_errors(preflight(plan))
            values[ranks] = plan
        except (UsageError, RefusedError) as error:
            is_usage = is_usage or isinstance(error, UsageError)
            problems.setdefault(error.render(), []).append(ranks)
    if problems:
        text = "\n".join(f"with {_listed(ranks)}: {what}" for what, ranks in problems.items())
        raise UsageError(text) if is_usage else RefusedError(text)
    return values


def _listed(sizes: Sequence[int]) -> str:
    *all_but_last, last = map(str, sizes)
    return (
        f"{', '.join(all_but_last)} and {last} ranks"
        if all_but_last
        else f"{last} {'rank' if last == '1' else 'ranks'}"
    )


def scaled_plan(make: MakePlan, base: Plan, ranks: int, *, most: int, weak: bool) -> Plan:
    """The plan of the run that measures the job with so many ranks. UsageError where it cannot have
    as many.

    `most`: the largest number of ranks on the curve.
    """
    overrides = [*_resources(base, ranks), "limits.restarts=0"]
    longest = base.spec.limits.max_runtime
    if longest is None or longest > MAX_SECONDS:
        overrides.append(f"limits.max_runtime={MAX_SECONDS} s")
    if base.spec.checkpoints.uri:
        overrides.append("checkpoints.uri=null")
    if weak:
        overrides.append(_batch(base, ranks))
    if (threads := threads_each(base, most)) is not None:
        overrides.append(f"env.{THREADS}={threads}")
    plan = make(overrides)
    rules = replace(TrialRules.of_measurement(0, METRIC, "maximize"), until=REPORTS)
    return replace(plan, context=replace(plan.context, trial=rules))


def another(plan: Plan) -> Plan:
    """The same plan under a new run id, for the next turn."""
    run_id = new_run_id(Path(plan.context.data_dir), plan.spec.name)
    return replace(plan, run_id=run_id, context=replace(plan.context, run_id=run_id))


def _resources(base: Plan, ranks: int) -> list[str]:
    """On one node for a job of one; else on as many nodes as the job's processes per node ask for."""
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


def _batch(base: Plan, ranks: int) -> str:
    """The argument by which each rank keeps its samples of a step. UsageError where they are not
    known.
    """
    values = base.spec.args.values
    arguments: Mapping[str, object] = values if isinstance(values, Mapping) else {}
    batch = arguments.get("batch-size")
    own_ranks = base.spec.resources.nodes * base.processes
    if base.spec.entrypoint is not None or not isinstance(batch, int):
        hint = (
            "args: {batch-size: N}, the trainer's, for all ranks; a program of one's own chooses"
            " its batch itself"
        )
        raise UsageError("--weak needs args.batch-size in the job", hint=hint)
    if batch % own_ranks:
        raise UsageError(
            f"--weak: a batch of {batch} is no whole number of samples for each of {own_ranks} ranks"
        )
    return f"args.batch-size={batch // own_ranks * ranks}"


def threads_each(base: Plan, most: int) -> int | None:
    """Threads with which each rank computes, whatever their number: what the most ranks leave each
    of this machine's cores. None where ranks have GPUs or other machines, or the job says it
    itself.

    By default the fewer ranks have more threads each: a curve of ranks with unequal means.
    """
    cores = cores_shared(base)
    return None if cores is None or THREADS in base.spec.env else max(1, cores // most)


def cores_shared(plan: Plan) -> int | None:
    """How many cores the ranks of a plan share on this machine; None where they have GPUs, or other
    machines.
    """
    if plan.gpus or plan.host.declaration.is_remote:
        return None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def measurement_of(
    run: Run, state: RunState, ranks: int, usd_per_hour: float | None
) -> Measurement:
    """Return what one run has measured: one turn, or why there is none."""
    measurement = Measurement(ranks=ranks, usd_per_hour=usd_per_hour, runs=(run.id,))
    if rates := _reported_rates(run):
        return replace(
            measurement,
            turns=(rates,),
            communication=_communication(state),
            slowness=diagnose_slowness(run.folder, state),
        )
    is_silent = state.state == "succeeded"
    return replace(measurement, failure=f"it reported no {METRIC}" if is_silent else explain(state))


def _reported_rates(run: Run) -> tuple[float, ...]:
    """The throughputs that a program has reported, without the first ones."""
    values = [value for point in run.metrics() if (value := point.values.get(METRIC)) is not None]
    counted = values[WARM_UP_REPORTS:] if len(values) > WARM_UP_REPORTS else []
    return tuple(value for value in counted if math.isfinite(value) and value > 0)


def _communication(state: RunState) -> float | None:
    """The mean share over the ranks, where step times tell it."""
    totals = state.step_times.totals().values()
    shares = [sums.share("communication") for sums in totals if "communication" in sums.seconds]
    return sum(shares) / len(shares) if shares else None


def joined(first: Measurement | None, second: Measurement) -> Measurement:
    """Two turns with the same number of ranks; one that failed adds nothing but its run."""
    if first is None or not second.turns:
        chosen = second if first is None or not first.turns else first
        return chosen if first is None else replace(chosen, runs=(*first.runs, *second.runs))
    if not first.turns:
        return replace(second, runs=(*first.runs, *second.runs))
    both = [value for value in (first.communication, second.communication) if value is not None]
    return replace(
        second,
        turns=(*first.turns, *second.turns),
        communication=sum(both) / len(both) if both else None,
        runs=(*first.runs, *second.runs),
    )
