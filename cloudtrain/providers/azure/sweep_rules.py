"""Parts of a `sweep` section and its budget that a sweep job cannot express. Pure.

After "CLI (v2) sweep job YAML schema" and "Hyperparameter tuning a model (v2)" in the documentation
of Azure Machine Learning, and after the rules for names of metrics in MLflow's. Nothing is
approximated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.errors import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import spec_overrides
from cloudtrain.planning.tuned import argument_of, sweep_of
from cloudtrain.providers.azure.request import FORM, section_of
from cloudtrain.providers.azure.rules import SWEEP_JOB, override_issues, size_issues
from cloudtrain.providers.azure.sweep_request import (
    OF_TRIAL,
    OPTIONAL,
    SHARED,
    SWEEP_FORM,
    render,
)
from cloudtrain.providers.shared.sweep_rules import PORTABLE, ServiceLimits, service_issues
from cloudtrain.spec.search_space import Choice, Dimension, Normal
from cloudtrain_wire.tuned_values import plain_name

MAX_TRIALS = 1000
"""Maximum of max_total_trials and max_concurrent_trials ("Set limits for your sweep job")."""
MAX_SECONDS = 5_184_000
"""Default of `limits.timeout` in the YAML schema."""

_LIMITS = ServiceLimits("a sweep job", MAX_TRIALS, (1, MAX_SECONDS), has_target=False)

METRIC = r"[\w./ -]{1,250}"
"""A metric name that MLflow accepts."""


def sweep_job_issues(plan: Plan) -> list[Issue]:
    """Return issues: errors refuse the sweep, warnings name differences to our own trials."""
    issues: list[Issue] = []
    issues += _objective(plan)
    issues += _space(plan)
    issues += _method(plan)
    issues += _job(plan)
    issues += service_issues(plan, _LIMITS)
    issues += _notes(plan)
    return [plan.located(issue) for issue in issues]


def _objective(plan: Plan) -> Iterator[Issue]:
    metric = sweep_of(plan).objective.metric
    if not re.fullmatch(METRIC, metric, re.ASCII):
        message = f"{metric!r} is not a valid metric name in MLflow, which reports it to Azure ML"
        yield Issue(
            ("sweep", "objective", "metric"),
            message,
            "letters, digits, and _ - . / or a space",
        )


def _space(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    names = dict[str, str]()
    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if not argument_of(key):
            continue
        first_key = names.setdefault(plain_name(key), key)
        if first_key != key:
            message = (
                f"and {first_key} have the same name on Azure ML, which takes letters, digits and"
                " underscores alone"
            )
            yield Issue(path, message, f"rename one of them, or {PORTABLE}")
        for message, hint in _expressions(dimension, sweep.method):
            yield Issue(path, message, hint)


def _expressions(dimension: Dimension, method: str) -> Iterator[tuple[str, str]]:
    if isinstance(dimension, Choice):
        for value in dimension.values:
            if isinstance(value, str) and re.search(r"['\x00-\x1f\x7f]|\$\{\{", value):
                message = (
                    f"the value {value!r} cannot be put into the command of a sweep job unchanged"
                )
                yield message, f"no single quotes, ${{{{ or line ends in it; or {PORTABLE}"
    elif (dimension.log or isinstance(dimension, Normal)) and method == "bayesian":
        message = "Azure ML's Bayesian sampling takes choice, uniform and quniform alone"
        yield message, f"method: random; or {PORTABLE}"


def _method(plan: Plan) -> Iterator[Issue]:
    if sweep_of(plan).method == "asha":
        message = "Azure ML lacks successive halving: it samples by grid, random and bayesian"
        yield Issue(("sweep", "method"), message, PORTABLE)


def _job(plan: Plan) -> Iterator[Issue]:
    if section_of(plan).services:
        message = "the trials of a sweep job cannot have services"
        yield Issue(("azure", "services"), message, f"leave it out, or {PORTABLE}")
    shared = OF_TRIAL + SHARED + OPTIONAL
    for item in spec_overrides(plan.spec, "azure"):
        if item.keys[1] == FORM.field and item.names[0] not in shared:
            message = f"a sweep job and its trials have no {item.names[0]}"
            yield Issue(item.keys, message, f"leave it out, or {PORTABLE}")

    sweep_request = section_of(plan).sweep_request
    yield from override_issues(sweep_request, SWEEP_FORM, SWEEP_JOB)
    yield from size_issues(render(plan).job)


def _notes(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method == "bayesian" and sweep.seed:
        message = "plays no part: Azure ML's Bayesian sampling takes no seed"
        yield warning(message, path=("sweep", "seed"))
