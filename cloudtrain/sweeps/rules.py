"""Errors and warnings of a sweep: its budget, its early stopping, its values.

They use rules, tables and the disk: no network, no process, no SDK.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from cloudtrain.api.trainer_arguments import trainer_issues
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import Issue, Keys, UsageError, warning
from cloudtrain.extras import install_command
from cloudtrain.planning.cost import HOUR, PRICE_UNKNOWN, SHORTEST_SECONDS, CostEstimate
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.providers import get_provider
from cloudtrain.spec.fields import read_arguments
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.search_space import Scalar
from cloudtrain.spec.sweep import EarlyStopping, Sweep
from cloudtrain.spec.varied_settings import (
    LENGTHS,
    REPORTED,
    arguments_of,
    issues_of_values,
    path_of,
    report_count,
    samples,
)
from cloudtrain_wire.bounded_files import read_regular_text

_MAX_COST: Keys = ("sweep", "budget", "max_cost")


def sweep_issues(plan: Plan) -> list[Issue]:
    """Return the issues of a sweep, errors first. `plan`: plan of the job itself."""
    sweep = plan.spec.sweep
    if sweep is None:
        return []

    rules = (_values, _objective, _budget, _stopping, _engine)
    issues: list[Issue] = []
    for rule in rules:
        issues += rule(plan, sweep)

    return sorted(map(plan.located, issues), key=lambda issue: not issue.is_error)


def billed(plan: Plan) -> CostEstimate | None:
    """Return the cost estimate of a run; None without costs."""
    if plan.is_rehearsal:
        return None

    return plan.target.cost_estimate


def last_report(spec: JobSpec, sweep: Sweep) -> int | None:
    """Return the reports of a whole trial from the section or the trainer's arguments."""
    if sweep.stopping is not None and sweep.stopping.max is not None:
        return sweep.stopping.max

    values = spec.args.values or {}
    varied = arguments_of(sweep.space)
    if (
        spec.entrypoint is not None
        or not isinstance(values, Mapping)
        or not varied.keys().isdisjoint(LENGTHS)
    ):
        return None

    return report_count(sweep.objective.metric, values, varied)


def _values(plan: Plan, sweep: Sweep) -> Iterator[Issue]:
    """Yield arguments that the shared trainer would refuse, and too many nodes."""
    if plan.spec.entrypoint is None:
        before = {_bare(issue) for issue in trainer_issues(plan)}
        for key, dimension in sweep.space.items():
            issues_by_value = {}
            for value in samples(dimension):
                spec = _with_value(plan.spec, path_of(key), value)
                if spec is None:
                    continue

                issues = map(_bare, trainer_issues(replace(plan, spec=spec)))
                issues_by_value[value] = [issue for issue in issues if issue not in before]

            written = [] if f"sweep.space.{key}[0]" in plan.origins else ""
            if issues_by_value:
                yield from issues_of_values(key, written, issues_by_value)

    nodes = sweep.space.get("resources.nodes")
    most = 0
    if nodes:
        most = max((count for count in samples(nodes) if isinstance(count, int)), default=0)

    if most > plan.target.max_nodes:
        provider = plan.target.provider
        message = f"{most} nodes exceed the limit of {provider} ({plan.target.max_nodes})"
        yield Issue(("sweep", "space", "resources.nodes"), message)


def _bare(issue: Issue) -> Issue:
    return replace(issue, origin="")


def _with_value(spec: JobSpec, path: Keys, value: Scalar) -> JobSpec | None:
    """Return the job with a value of an argument or of a resource; None for other settings."""
    section = str(path[0])
    name = str(path[-1])

    values = spec.args.values or {}
    if section == "args" and isinstance(values, Mapping):
        return spec.model_copy(update={"args": read_arguments({**values, name: value})})

    if section == "resources" and name in ("nodes", "processes"):
        return spec.model_copy(
            update={"resources": spec.resources.model_copy(update={name: value})}
        )

    return None


def _objective(plan: Plan, sweep: Sweep) -> Iterator[Issue]:
    metric = sweep.objective.metric
    goal = sweep.objective.goal

    if plan.spec.entrypoint is None:
        usual = REPORTED.get(metric, goal)
        if goal != usual:
            better = "lower" if usual == "minimize" else "higher"
            message = f"looks for the worst: {metric} is better the {better} it is"
            yield warning(message, f"goal: {usual}", path=("sweep", "objective", "goal"))
    elif metric not in plan.spec.metrics and not _is_named(plan, metric):
        message = (
            f"{plan.spec.entrypoint} does not name {metric!r}: a search needs it to be reported"
        )
        hint = (
            "log_metrics reports it, or a pattern under metrics finds it; right if a library does"
        )
        yield warning(message, hint, path=("sweep", "objective", "metric"))


def _is_named(plan: Plan, metric: str) -> bool:
    """Return True if the program contains the name of the metric, or cannot be read."""
    path = Path(plan.context.source.root, plan.spec.entrypoint or "")
    if path.suffix != ".py":
        return True

    try:
        text = read_regular_text(path, errors="replace")
    except OSError:
        return True

    return re.search(rf"(?<!\w){re.escape(metric)}(?!\w)", text) is not None


def _budget(plan: Plan, sweep: Sweep) -> Iterator[Issue]:
    estimate = billed(plan)
    budget = sweep.budget
    limits = plan.spec.limits

    if budget.max_cost is None or estimate is None or sweep.engine == "native":
        return  # native sweeps have other rules

    if estimate.usd_per_hour is None or estimate.worst_usd is None:
        hint = f"{estimate.price_hint}, or replace it by budget.max_time"
        yield Issue(_MAX_COST, PRICE_UNKNOWN, hint)
    elif estimate.usd_per_hour and limits.max_runtime is None and limits.max_cost is None:
        yield from _shares(estimate, estimate.usd_per_hour, budget.max_cost, sweep.trial_count)
    elif estimate.worst_usd > budget.max_cost + 1e-9:
        message = f"is less than one trial may cost: {estimate.worst_usd:.2f} USD"
        yield Issue(
            _MAX_COST, message, "raise it, or set limits.max_runtime or limits.max_cost lower"
        )


def _shares(
    estimate: CostEstimate, usd_per_hour: float, usd: float, trials: int
) -> Iterator[Issue]:
    """Yield an error if an equal share of the budget is too small for a trial."""
    seconds = int(usd / trials / usd_per_hour * HOUR / estimate.attempts)
    seconds -= estimate.overhead_seconds
    if seconds < SHORTEST_SECONDS:
        message = (
            f"pays for {max(0, seconds)} s of each of {trials} trials at {usd_per_hour:.2f} USD per"
            " hour"
        )
        yield Issue(_MAX_COST, message, "raise it, or ask for fewer trials")


def _stopping(plan: Plan, sweep: Sweep) -> Iterator[Issue]:
    stopping: EarlyStopping | None = sweep.stopping
    if stopping is None or sweep.engine == "native":
        return

    declared = declaration_of(plan.provider)
    at = ("sweep", "early_stopping" if sweep.early_stopping else "method")

    if stopping.promote != "always" and not declared.publishes:
        message = (
            "needs messages from the driver to running trials, and jobs on"
            f" {declared.label} cannot receive any"
        )
        yield Issue(at, message, "promote: always works without; or remove early stopping")

    yield from _trial_issues(plan, sweep, stopping)


def _trial_issues(plan: Plan, sweep: Sweep, stopping: EarlyStopping) -> Iterator[Issue]:
    """Yield errors that a provider reports only for early stopping."""
    metric = sweep.objective.metric
    goal = sweep.objective.goal
    trial = TrialRules(
        trial=0,
        metric=metric,
        goal=goal,
        rungs=(stopping.grace or 1,),
        eta=stopping.eta or 2,
    )
    rules_of = get_provider(plan.target.provider).rules
    before = {_bare(issue) for issue in rules_of(plan)}
    issues = map(_bare, rules_of(replace(plan, context=replace(plan.context, trial=trial))))
    yield from (issue for issue in issues if issue not in before)


def _engine(plan: Plan, sweep: Sweep) -> Iterator[Issue]:
    at = ("sweep", "engine")
    if sweep.engine != "native" and sweep.chosen_sampler == "tpe" and find_spec("optuna") is None:
        message = f"{sweep.chosen_sampler} chooses values by Optuna, which is not installed"
        hint = f"{install_command('sweeps')}; or method: random"
        field = "sampler" if sweep.sampler else "method"
        yield Issue(("sweep", field), message, hint)

    if sweep.engine == "native":
        try:
            yield from get_provider(plan.target.provider).native_sweeps().rules(plan)
        except UsageError as error:
            yield Issue(at, error.what, "engine: portable runs trials wherever jobs run")

    if sweep.engine == "ray":
        yield from _ray(plan)


def _ray(plan: Plan) -> Iterator[Issue]:
    """Yield the reasons why Ray cannot run the trials of a plan, without importing Ray."""
    at: Keys = ("sweep", "engine")
    host = declaration_of(plan.provider)
    if plan.is_rehearsal or host.is_remote or not host.runs_on_lent_machines:
        message = (
            "runs trials as processes on the machines of its cluster, not as jobs of"
            f" {plan.target.declaration.label}"
        )
        hint = "--provider local, from a node of the cluster; or engine: portable"
        yield Issue(at, message, hint)

    if find_spec("ray") is None:
        yield Issue(at, "needs Ray, which is not installed", install_command("ray"))

    if (address := os.environ.get("RAY_ADDRESS", "")).partition("://")[1]:
        message = f"needs its driver on a node of the cluster, and RAY_ADDRESS is {address}"
        yield Issue(at, message, "start the sweep there: ray job submit -- cloudtrain sweep")


def as_checked_here(plan: Plan) -> Plan:
    """Return the job as this machine can check it: without GPUs that Ray provides."""
    if plan.spec.sweep is None or plan.spec.sweep.engine != "ray" or not plan.gpus:
        return plan
    return replace(plan, target=replace(plan.target, gpus=0))
