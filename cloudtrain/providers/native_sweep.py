"""Interface of native sweeps: a cloud's service chooses values and starts the trials.

The sweep's folder has the layout of a run folder (plan.json, request.json, job.json and
events.jsonl), so that submissions, lost answers and stops are recorded as for a job. Its plan is
the job's, with the sweep's id as run id. A trial is a job with a name chosen by the cloud:
`NativeTrial.run` makes an ordinary run of it, which is listed, watched and fetched like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from cloudtrain.catalog.pricing import OWN_TABLE_HINT, PRICE_UNKNOWN
from cloudtrain.errors import Issue
from cloudtrain.planning.launch import Request
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import argument_of, sweep_of
from cloudtrain.providers import DiscoveredRun, Progress
from cloudtrain.spec.search_space import Integers
from cloudtrain.units import exact_duration

if TYPE_CHECKING:
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.spec.search_space import Scalar

PORTABLE = "engine: portable runs it from this machine, with the same section"
"""Next step for what a service cannot do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeTrial:
    """A trial, as the cloud's service lists it."""

    number: int
    """Number from 0, in the order of starts."""
    name: str
    """Name of its job in the cloud: the id of its run."""
    parameters: Mapping[str, Scalar]
    """Value of each setting, of the same type as in a portable trial."""
    state: Literal["waiting", "running", "completed", "pruned", "failed", "stopped"]
    """State as in `sweeps.state.Trial`; pruned: the service ended it early."""
    reason: str = ""
    value: float | None = None
    """Latest value of the metric; None if the service does not report it."""
    curve: Sequence[float] = ()
    """All reports of the metric, if the service keeps them; else they are events of its run."""
    usd: float | None = None
    """Cost until now; None if unknown."""
    seconds: float = 0.0
    """Duration until now."""
    run: DiscoveredRun | None = None
    """Values for an ordinary run of it; None before there is a job to watch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeSweepState:
    """A sweep as the cloud's service describes it."""

    state: Literal["running", "stopping", "succeeded", "failed", "stopped"]
    """Current state; the last three are final.

    succeeded: all trials have ended, and one has a value. failed: no trial has a value, or the
    service failed.
    """
    reason: str = ""
    trials: Sequence[NativeTrial] = ()
    """All trials, by number."""
    url: str = ""
    """Page of the sweep in the cloud's console."""

    @property
    def has_ended(self) -> bool:
        """True if the state is final."""
        return self.state in ("succeeded", "failed", "stopped")


class NativeSweeps(Protocol):
    """Interface of a provider with a service for sweeps. Everything up to `render` is pure.

    `plan.spec.sweep` is set.
    """

    def rules(self, plan: Plan) -> list[Issue]:
        """Return parts that the service cannot express, each at its line, and a budget at risk.

        Nothing is approximated: an error refuses the sweep. `Provider.rules` covers the job itself.
        """
        ...

    def method(self, plan: Plan) -> str:
        """Name the service's method of choosing values: `SageMaker's Bayesian strategy`."""
        ...

    def stopping(self, plan: Plan) -> str:
        """Say what ends bad trials early; empty for nothing."""
        ...

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the service's request, with the job document that all trials share."""
        ...

    def render_trial(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the request of one trial as the service would start it, for a rehearsal.

        Its values are arguments of the plan.
        """
        ...

    def start(
        self,
        plan: Plan,
        request: Request,
        folder: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Start the sweep and return a reference to it, as `Provider.start` does for a job.

        Idempotent: the remote name is the sweep's id. An error without `Outcome.UNKNOWN` means that
        no sweep was started.
        """
        ...

    def observe(
        self,
        folder: RunFolder,
        state: RunState,
        record: Record,
    ) -> NativeSweepState | None:
        """Return the current state of the sweep and its trials.

        `state`: state of `folder`; `record` stores in it the outcome of an interrupted
        submission. Return None if it is not known yet whether the sweep was started, or if `state`
        has ended because it was not. Raise CloudError if the service cannot be reached.
        """
        ...

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the service to stop all trials with a checkpoint. Return False if not possible yet."""
        ...


def worst_usd(plan: Plan) -> float | None:
    """Return the maximum cost of all trials together; None if the price is unknown.

    A trial costs at most its own cap; at most `parallel` trials run during the maximum time of the
    sweep.
    """
    sweep = sweep_of(plan)
    estimate = plan.target.cost_estimate
    if estimate is None or estimate.worst_usd is None or estimate.usd_per_hour is None:
        return None

    all_trials = sweep.trial_count * estimate.worst_usd
    if sweep.budget.max_time is None or estimate.kept_seconds:
        return all_trials

    hours = (sweep.budget.max_time + estimate.overhead_seconds) / 3600
    return min(all_trials, sweep.parallel * estimate.usd_per_hour * hours)


def budget_issues(plan: Plan) -> Iterator[Issue]:
    """Yield an issue if the cost may exceed the budget in money."""
    limit = sweep_of(plan).budget.max_cost
    if limit is None:
        return

    worst = worst_usd(plan)
    path = ("sweep", "budget", "max_cost")
    if worst is None:
        how = plan.target.cost_estimate.price_hint if plan.target.cost_estimate else OWN_TABLE_HINT
        yield Issue(path, PRICE_UNKNOWN, f"{how}, or replace it by budget.max_time")
    elif worst > limit + 1e-9:
        message = f"{sweep_of(plan).trial_count} trials may cost {worst:.2f} USD, more than {limit:.2f} USD"
        yield Issue(
            path,
            message,
            "fewer trials, a lower limits.max_cost or limits.max_runtime of each, or"
            " budget.max_time",
        )


def unused_issues(plan: Plan, *fields: str) -> Iterator[Issue]:
    """Yield an issue for each field of the provider's section that only a native sweep uses."""
    provider = plan.target.provider
    sweep = plan.spec.sweep
    if plan.is_rehearsal or (sweep is not None and sweep.engine == "native"):
        return

    for field in fields:
        if getattr(getattr(plan.spec, provider, None), field, None):
            hint = "the other engines read the section sweep alone"
            yield Issue((provider, field), "needs sweep.engine: native", hint)


class ServiceLimits(NamedTuple):
    """What a cloud's service for sweeps takes."""

    name: str
    """Its name in a sentence: `a tuning job`."""
    max_trials: int
    seconds: tuple[int, int]
    """Minimum and maximum of `sweep.budget.max_time`."""
    has_target: bool = True
    """True if it can stop at a value of the objective."""


def service_issues(plan: Plan, limits: ServiceLimits) -> Iterator[Issue]:
    """Yield an issue for each part that no service, or not this one, can express."""
    sweep = sweep_of(plan)
    name = limits.name
    leave_out = f"leave it out, or {PORTABLE}"

    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if not argument_of(key):
            message = f"is not an argument of the program: {name} varies only arguments"
            yield Issue(path, message, PORTABLE)
        elif isinstance(dimension, Integers) and dimension.step > 1 and sweep.method != "grid":
            message = f"has a step of {dimension.step}, which {name} does not take"
            yield Issue(path, message, f"choice(…) with at most 30 values; or {PORTABLE}")
    if sweep.sampler not in (None, sweep.method):
        message = f"{name} does not have the sampler {sweep.sampler}"
        yield Issue(("sweep", "sampler"), message, leave_out)
    if sweep.method == "grid" and sweep.trials is not None and sweep.trials < sweep.grid_size:
        message = f"{name} runs all {sweep.grid_size} points of a grid, not {sweep.trials} of them"
        yield Issue(("sweep", "trials"), message, leave_out)
    if sweep.trial_count > limits.max_trials:
        field = "trials" if sweep.trials is not None else "space"
        message = f"{sweep.trial_count} trials are more than {name} has: {limits.max_trials}"
        yield Issue(("sweep", field), message, PORTABLE)
    if sweep.retries:
        hint = f"limits.restarts starts its processes again; or {PORTABLE}"
        yield Issue(("sweep", "retries"), f"{name} starts no failed trial again", hint)
    if sweep.early_stopping is not None and sweep.method != "asha":
        yield Issue(("sweep", "early_stopping"), f"{name} compares no rungs", leave_out)
    if sweep.try_first:
        yield Issue(("sweep", "try_first"), f"{name} chooses all values itself", PORTABLE)
    if sweep.objective.target is not None and not limits.has_target:
        path = ("sweep", "objective", "target")
        yield Issue(path, f"{name} stops at no value of its objective", PORTABLE)

    least, most = limits.seconds
    seconds = sweep.budget.max_time
    if seconds is not None and not least <= seconds <= most:
        allowed = f"{exact_duration(least)} to {exact_duration(most)}"
        message = f"is {exact_duration(seconds)}, and {name} takes {allowed}"
        yield Issue(("sweep", "budget", "max_time"), message)

    yield from budget_issues(plan)
