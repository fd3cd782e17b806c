"""Rules of a sweep job: what it cannot express of a `sweep` section, or of its budget.

After "CLI (v2) sweep job YAML schema" and "Hyperparameter tuning a model (v2)" in the documentation
of Azure Machine Learning, and the rules for names of metrics in MLflow's. Pure. Nothing is
approximated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import argument_of, plain_name, sweep_of
from cloudtrain.providers.azure.request import as_variable, section_of
from cloudtrain.providers.azure.rules import JOB_BYTES
from cloudtrain.providers.azure.sweep_request import shared_job
from cloudtrain.providers.shared.sweep_budget import budget_issues
from cloudtrain.providers.shared.sweep_gaps import gap_issues
from cloudtrain.spec.search_space import Choice, Dimension, Integers
from cloudtrain.units import exact_duration

MAX_TRIALS = 1000
"""Maximum of max_total_trials and max_concurrent_trials ("Set limits for your sweep job")."""
MAX_SECONDS = 5_184_000
"""Default of `limits.timeout` in the YAML schema."""
METRIC = r"[\w./ -]{1,250}"
"""A metric name that MLflow accepts."""
PORTABLE = "engine: portable runs it from this machine, with the same section"


def sweep_job_issues(plan: Plan) -> list[Issue]:
    """Return issues: errors refuse the sweep, warnings name differences to our own trials."""
    issues = [
        *_objective(plan),
        *_space(plan),
        *_method(plan),
        *_stopping(plan),
        *_job(plan),
        *_time(plan),
    ]
    issues += [
        *budget_issues(plan),
        *gap_issues(plan, "a sweep job", has_target=False),
        *_notes(plan),
    ]
    return [plan.located(issue) for issue in issues]


def _objective(plan: Plan) -> Iterator[Issue]:
    metric = sweep_of(plan).objective.metric
    if not re.fullmatch(METRIC, metric, re.ASCII):
        message = f"{metric!r} is not a valid metric name in MLflow, which reports it to Azure ML"
        yield Issue(
            ("sweep", "objective", "metric"), message, "letters, digits, and _ - . / or a space"
        )


def _space(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    names = dict[str, str]()
    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if not argument_of(key):
            yield Issue(
                path,
                "is not an argument of the program: a sweep job varies only arguments",
                PORTABLE,
            )
            continue
        first_key = names.setdefault(plain_name(key), key)
        if first_key != key:
            message = (
                f"and {first_key} have the same name on Azure ML, which takes letters, digits and"
                " underscores alone"
            )
            yield Issue(path, message, f"rename one of them, or {PORTABLE}")
        yield from (Issue(path, *problem) for problem in _expressions(dimension, sweep.method))


def _expressions(dimension: Dimension, method: str) -> Iterator[tuple[str, str]]:
    if isinstance(dimension, Choice):
        for value in dimension.values:
            if isinstance(value, str) and re.search(r"['\x00-\x1f\x7f]|\$\{\{", value):
                message = (
                    f"the value {value!r} cannot be put into the command of a sweep job unchanged"
                )
                yield message, f"no single quotes, ${{{{ or line ends in it; or {PORTABLE}"
    elif isinstance(dimension, Integers) and dimension.step > 1 and method != "grid":
        message = (
            f"has a step of {dimension.step}, and Azure ML's quniform rounds to multiples of it"
        )
        yield message, f"choice(…) with at most 30 values; or {PORTABLE}"
    elif dimension.log and method == "bayesian":
        message = (
            "Azure ML's Bayesian sampling takes choice, uniform and quniform, and nothing that is"
            " logarithmic"
        )
        yield message, f"method: random; or {PORTABLE}"


def _method(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method == "asha":
        message = "Azure ML lacks successive halving: it samples by grid, random and bayesian"
        yield Issue(("sweep", "method"), message, PORTABLE)
    allowed = ("random",) if sweep.method == "random" else ()
    if sweep.sampler is not None and sweep.method != "asha" and sweep.sampler not in allowed:
        message = f"Azure ML does not say that its {sweep.method} sampling is {sweep.sampler}"
        yield Issue(("sweep", "sampler"), message, f"leave it out, or {PORTABLE}")
    if sweep.method == "grid" and sweep.trials is not None and sweep.trials < sweep.grid_size:
        message = (
            f"Azure ML does not say which {sweep.trials} of the {sweep.grid_size} points of a grid"
            " it would take"
        )
        yield Issue(("sweep", "trials"), message, f"leave it out, or {PORTABLE}")
    if sweep.trial_count > MAX_TRIALS:
        path = ("sweep", "trials") if sweep.trials is not None else ("sweep", "space")
        yield Issue(
            path,
            f"{sweep.trial_count} trials are more than a sweep job has: {MAX_TRIALS}",
            PORTABLE,
        )
    if sweep.retries:
        message = "a sweep job starts no failed trial again"
        yield Issue(
            ("sweep", "retries"),
            message,
            f"limits.restarts starts its processes again; or {PORTABLE}",
        )


def _stopping(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.early_stopping is not None and sweep.method != "asha":
        message = (
            "a sweep job compares no rungs: bandit, median stopping and truncation selection are"
            " other rules"
        )
        yield Issue(("sweep", "early_stopping"), message, f"leave it out, or {PORTABLE}")


def _job(plan: Plan) -> Iterator[Issue]:
    if section_of(plan).services:
        message = "the trials of a sweep job cannot have services"
        yield Issue(("azure", "services"), message, f"leave it out, or {PORTABLE}")
    size = len(as_variable(shared_job(plan).to_json()).encode("utf-8", "replace"))
    if size > JOB_BYTES:
        message = f"{size} bytes are more than can be sent with a job ({JOB_BYTES})"
        yield Issue(("args",), message, "put long values into a file in the source folder")


def _time(plan: Plan) -> Iterator[Issue]:
    seconds = sweep_of(plan).budget.max_time
    if seconds is not None and seconds > MAX_SECONDS:
        message = (
            f"is {exact_duration(seconds)}, and a sweep job runs for at most"
            f" {exact_duration(MAX_SECONDS)}"
        )
        yield Issue(("sweep", "budget", "max_time"), message)


def _notes(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method == "bayesian" and sweep.seed:
        message = "plays no part: Azure ML's Bayesian sampling takes no seed"
        yield warning(message, path=("sweep", "seed"))
    if sweep.method == "bayesian" and sweep.trial_count < 20 * len(sweep.space):
        message = (
            f"are few: Azure ML recommends at least {20 * len(sweep.space)} for {len(sweep.space)}"
            " settings with its Bayesian sampling"
        )
        yield warning(message, path=("sweep", "trials"))
