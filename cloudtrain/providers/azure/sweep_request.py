"""Turn a plan with a `sweep` section into the document of an Azure ML sweep job. Pure.

A trial is the command job that the same plan would be without a sweep. All of them share the sweep
job's outputs, so that the launcher of each writes to a separate folder there. Rules refuse what a
sweep job cannot express of a `sweep` section, or of its budget, after "CLI (v2) sweep job YAML
schema" and "Hyperparameter tuning a model (v2)" in the documentation of Azure Machine Learning, and
after the rules for names of metrics in MLflow's. Nothing is approximated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue, warning
from cloudtrain.planning.launch import TAG_PREFIX, Request
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request, spec_overrides
from cloudtrain.planning.tuned import (
    argument_of,
    room_for,
    sweep_of,
    trial_texts,
    variable_of,
)
from cloudtrain.providers.azure.request import (
    EARLY_TERMINATION,
    FORM,
    OUTPUTS,
    command_of,
    job_of,
    more_outputs,
    request_with,
    section_of,
)
from cloudtrain.providers.azure.rules import override_issues, size_issues
from cloudtrain.providers.native_sweep import PORTABLE, ServiceLimits, service_issues
from cloudtrain.providers.shared.paths import as_folder
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Normal
from cloudtrain.spec.sweep import Sweep
from cloudtrain_launcher.contract import plain_name, text_of

if TYPE_CHECKING:
    from cloudtrain.planning.reference import ResolvedImage


SCHEMA = "https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json"

MAX_TRIALS = 1000
"""Maximum of max_total_trials and max_concurrent_trials ("Set limits for your sweep job")."""
MAX_SECONDS = 5_184_000
"""Default of `limits.timeout` in the YAML schema."""
_LIMITS = ServiceLimits("a sweep job", MAX_TRIALS, (1, MAX_SECONDS), has_target=False)
METRIC = r"[\w./ -]{1,250}"
"""A metric name that MLflow accepts."""

SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""Tag of the sweep job with its id, which distinguishes it from a run."""

OF_TRIAL = ("code", "command", "environment", "environment_variables", "distribution", "resources")
"""Keys of a command job that belong to the `trial` of a sweep job."""
OF_SWEEP = ("display_name", "experiment_name", "inputs", "outputs", "properties")
"""Keys of a command job that a sweep job has itself; OPTIONAL: keys that either may have."""
OPTIONAL = ("compute", "queue_settings", "identity", "description")
SWEEP_FORM = RequestForm(
    section="azure",
    field="sweep_request",
    list_keys={},
    reserved={
        "sampling_algorithm.type": "use sweep.method",
        "sampling_algorithm.seed": "use sweep.seed",
        "search_space": "use sweep.space",
        "objective": "use sweep.objective",
        "limits": "use sweep.trials, sweep.parallel, sweep.budget and limits",
        EARLY_TERMINATION: f"use azure.{EARLY_TERMINATION}",
        **dict.fromkeys((*OF_SWEEP, *OPTIONAL, "tags", "trial"), "use azure.request"),
        **dict.fromkeys(("$schema", "type", "name"), "it is the sweep job's own"),
    },
)
"""Keys of the sweep job that `azure.sweep_request` may not set, since another field does."""
SWEEP_KEYS = {"": ("sampling_algorithm",), "sampling_algorithm": ("rule", "logbase")}
"""Its other keys, by the key around them. Source: "CLI (v2) sweep job YAML schema"."""


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the document of a sweep job for `az ml job create -f`, and all trials' job document.

    Each trial's launcher fills its values and its run id into that document.
    """
    azure = section_of(plan)
    sweep = sweep_of(plan)
    room, rules = room_for(plan)
    shared = replace(job_of(room), tuned=rules, service_metric=sweep.objective.metric)
    job = request_with(shared, room, image).document
    names = {key: variable_of(key) for key in sweep.space}
    # The shell keeps text in single quotes unchanged; the rules refuse text with such quotes.
    chosen = "".join(
        f" {name}='${{{{search_space.{plain_name(key)}}}}}'" for key, name in names.items()
    )
    document = {
        "$schema": SCHEMA,
        "type": "sweep",
        "name": plan.run_id,
        **{key: job[key] for key in OF_SWEEP},
        "trial": {
            **{key: job[key] for key in OF_TRIAL},
            "command": command_of(list(job["inputs"]), more_outputs(azure), chosen),
        },
        "sampling_algorithm": _sampling(sweep),
        "search_space": {
            plain_name(key): expression(item, sweep.method) for key, item in sweep.space.items()
        },
        "objective": {"goal": sweep.objective.goal, "primary_metric": sweep.objective.metric},
        "limits": _limits(sweep, job["limits"]["timeout"]),
        "tags": {**job["tags"], SWEEP_TAG: plan.run_id},
        **{key: job[key] for key in OPTIONAL if key in job},
    }
    if azure.early_termination:
        document[EARLY_TERMINATION] = azure.early_termination.model_dump(exclude_none=True)

    document = merge_request(document, azure.sweep_request, SWEEP_FORM)
    return Request(provider="azure", document=document, job=shared)


def render_trial(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the command job of a trial whose values are arguments of the plan."""
    sweep = render(plan, image)
    trial = trial_document(sweep.document, plan.run_id, trial_texts(plan))
    document = {**trial, "display_name": plan.spec.name}
    return Request(provider="azure", document=document, job=sweep.job)


def sampling_words(plan: Plan) -> str:
    """Name the sampling algorithm of a sweep job, for people."""
    sampling = _sampling(sweep_of(plan))
    return f"Azure ML's {sampling['type']} sampling"


def _sampling(sweep: Sweep) -> dict[str, Any]:
    if sweep.method != "random":
        return {"type": sweep.method}
    return {"type": "random", "seed": sweep.seed, "rule": "random"}


def _limits(sweep: Sweep, trial_seconds: int) -> dict[str, int]:
    limits = {
        "max_total_trials": sweep.trial_count,
        "max_concurrent_trials": min(sweep.parallel, max(1, sweep.trial_count)),
        "trial_timeout": trial_seconds,
    }
    if sweep.budget.max_time is not None:
        limits["timeout"] = sweep.budget.max_time

    return limits


def expression(dimension: Dimension, method: str) -> dict[str, Any]:
    """Return a dimension's expression: the same values, as likely for random search.

    Whole numbers are `round(uniform(low, high))` in Azure ML, so that random search, where each is
    to be as likely, needs half a unit more at both ends. Choices are texts, which come back
    unchanged.
    """
    if isinstance(dimension, Choice):
        return {"type": "choice", "values": [text_of(value) for value in dimension.values]}

    if isinstance(dimension, Normal):
        kind = f"{'log' * dimension.log}normal"
        return {"type": kind, "mu": dimension.mean, "sigma": dimension.deviation}

    low = dimension.low
    high = dimension.high
    if isinstance(dimension, Integers):
        if method == "grid":
            return {"type": "choice", "values": list(dimension.values)}
        if method == "random":
            low = dimension.low - 0.5
            high = dimension.high + 0.5

    kind = f"{'q' * isinstance(dimension, Integers)}{'log' * dimension.log}uniform"
    ends = (math.log(low), math.log(high)) if dimension.log else (low, high)
    document: dict[str, Any] = {"type": kind, "min_value": ends[0], "max_value": ends[1]}
    return {**document, "q": 1} if isinstance(dimension, Integers) else document


def sweep_job_issues(plan: Plan) -> list[Issue]:
    """Return issues: errors refuse the sweep, warnings name differences to our own trials."""
    issues = [
        *_objective(plan),
        *_space(plan),
        *_method(plan),
        *_job(plan),
        *service_issues(plan, _LIMITS),
        *_notes(plan),
    ]
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
        yield from (Issue(path, *problem) for problem in _expressions(dimension, sweep.method))


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
    shared = (*OF_TRIAL, *OF_SWEEP, *OPTIONAL, "tags")
    for item in spec_overrides(plan.spec, "azure"):
        if item.keys[1] == FORM.field and item.names[0] not in shared:
            message = f"a sweep job and its trials have no {item.names[0]}"
            yield Issue(item.keys, message, f"leave it out, or {PORTABLE}")

    own = section_of(plan).sweep_request
    yield from override_issues(own, SWEEP_FORM, SWEEP_KEYS, "a sweep job")
    yield from size_issues(render(plan).job)


def _notes(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method == "bayesian" and sweep.seed:
        message = "plays no part: Azure ML's Bayesian sampling takes no seed"
        yield warning(message, path=("sweep", "seed"))


def trial_document(sweep: Mapping[str, Any], name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the command-job document of a trial.

    `texts`: its values, by setting or by their plain names.
    """
    values = {plain_name(key): text for key, text in texts.items()}
    trial: Mapping[str, Any] = sweep["trial"]
    command = re.sub(
        r"\$\{\{search_space\.(\w+)\}\}",
        lambda match: values.get(match[1], match[0]),
        str(trial["command"]),
    )
    paths = {kind: f"{as_folder(sweep['outputs'][kind]['path'])}{name}/" for kind in OUTPUTS}
    outputs = {
        kind: {**item, "path": paths[kind]} if kind in paths else item
        for kind, item in sweep["outputs"].items()
    }
    return {
        **{key: sweep[key] for key in (*OF_SWEEP, "tags", *OPTIONAL) if key in sweep},
        **trial,
        "type": "command",
        "name": name,
        "display_name": name,
        "command": command,
        "outputs": outputs,
        "limits": {"timeout": sweep["limits"]["trial_timeout"]},
    }
