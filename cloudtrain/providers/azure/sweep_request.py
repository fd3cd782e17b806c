"""Turn a plan with a `sweep` section into the document of an Azure ML sweep job. Pure.

A trial is the command job that the same plan would be without a sweep. All of them share the sweep
job's outputs, so that the launcher of each writes to a separate folder there. `sweep_rules` refuses
what a sweep job cannot express.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.launch import TAG_PREFIX, Request
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.planning.tuned import room_for, sweep_of, trial_texts, variable_of
from cloudtrain.providers.azure.request import (
    EARLY_TERMINATION,
    OUTPUTS,
    command_of,
    job_of,
    more_outputs,
    request_with,
    section_of,
)
from cloudtrain.providers.shared.paths import as_folder
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Normal
from cloudtrain.spec.sweep import Sweep
from cloudtrain_wire.tuned_values import plain_name, text_of

if TYPE_CHECKING:
    from cloudtrain.planning.registry import ResolvedImage

SCHEMA = "https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json"

SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""Tag of the sweep job with its id, which distinguishes it from a run."""

OF_TRIAL = ("code", "command", "environment", "environment_variables", "distribution", "resources")
"""Keys of a command job that belong to the `trial` of a sweep job."""
OF_SWEEP = ("display_name", "experiment_name", "inputs", "outputs", "properties")
"""Keys of a command job that a sweep job has itself; OPTIONAL: keys that either may have."""
OPTIONAL = ("compute", "queue_settings", "identity", "description")
SHARED = (*OF_SWEEP, "tags")
"""Keys of a sweep job that each of its trials has, too."""
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
        **dict.fromkeys(SHARED + OPTIONAL, "use azure.request"),
        "trial": "use azure.request",
        "$schema": "it is the sweep job's own",
        "type": "it is the sweep job's own",
        "name": "it is the sweep job's own",
    },
)
"""Keys of the sweep job that `azure.sweep_request` may not set, since another field does."""


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the document of a sweep job for `az ml job create -f`, and all trials' job document.

    Each trial's launcher fills its values and its run id into that document.
    """
    azure = section_of(plan)
    sweep = sweep_of(plan)
    room, rules = room_for(plan)
    shared = replace(job_of(room), tuned=rules, service_metric=sweep.objective.metric)
    job = request_with(shared, room, image).document
    assignments = ""
    search_space = {}
    for key, dimension in sweep.space.items():
        name = plain_name(key)
        search_space[name] = expression(dimension, sweep.method)
        # The shell keeps text in single quotes unchanged; the rules refuse text with such quotes.
        assignments += f" {variable_of(key)}='${{{{search_space.{name}}}}}'"

    trial = {key: job[key] for key in OF_TRIAL}
    trial["command"] = command_of(list(job["inputs"]), more_outputs(azure), assignments)

    document: dict[str, Any] = {"$schema": SCHEMA, "type": "sweep", "name": plan.run_id}
    document |= {key: job[key] for key in OF_SWEEP}
    document |= {
        "trial": trial,
        "sampling_algorithm": _sampling(sweep),
        "search_space": search_space,
        "objective": {"goal": sweep.objective.goal, "primary_metric": sweep.objective.metric},
        "limits": _limits(sweep, job["limits"]["timeout"]),
        "tags": {**job["tags"], SWEEP_TAG: plan.run_id},
    }
    document |= {key: job[key] for key in OPTIONAL if key in job}
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
        kind = "lognormal" if dimension.log else "normal"
        return {"type": kind, "mu": dimension.mean, "sigma": dimension.deviation}

    low: float = dimension.low
    high: float = dimension.high
    if isinstance(dimension, Integers):
        if method == "grid":
            return {"type": "choice", "values": list(dimension.values)}
        if method == "random":
            low = dimension.low - 0.5
            high = dimension.high + 0.5

    kind = "uniform"
    if dimension.log:
        kind = "loguniform"
        low = math.log(low)
        high = math.log(high)
    if isinstance(dimension, Integers):
        return {"type": f"q{kind}", "min_value": low, "max_value": high, "q": 1}

    return {"type": kind, "min_value": low, "max_value": high}


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
    outputs = dict(sweep["outputs"])
    for kind in OUTPUTS:
        output = outputs[kind]
        outputs[kind] = {**output, "path": f"{as_folder(output['path'])}{name}/"}

    document = {key: sweep[key] for key in SHARED + OPTIONAL if key in sweep}
    document |= trial
    document |= {
        "type": "command",
        "name": name,
        "display_name": name,
        "command": command,
        "outputs": outputs,
        "limits": {"timeout": sweep["limits"]["trial_timeout"]},
    }
    return document
