"""Turn a plan with a `sweep` section into the document of an Azure ML sweep job. Pure.

A trial is the command job that the same plan would be without a sweep. All of them share the sweep
job's outputs, so that the launcher of each writes to a separate folder there. `sweep_rules` refuses
parts that a sweep job does not support.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import (
    plain_name,
    room_for,
    sweep_of,
    text_of,
    trial_texts,
    variable_of,
)
from cloudtrain.providers.azure.request import command_of, document_of, job_of
from cloudtrain.providers.azure.sweep_documents import (
    OF_SWEEP,
    OF_TRIAL,
    OPTIONAL,
    SWEEP_TAG,
    trial_document,
)
from cloudtrain.spec.search_space import Choice, Dimension, Integers
from cloudtrain.spec.sweep import Sweep

if TYPE_CHECKING:  # not needed to watch a sweep
    from cloudtrain.planning.launch import JobDocument
    from cloudtrain.planning.reference import ResolvedImage

SCHEMA = "https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json"


def sweep_document(plan: Plan, image: ResolvedImage | None = None) -> dict[str, Any]:
    """Return the document for `az ml job create -f`."""
    room, _ = room_for(plan)
    job = document_of(room, image, shared_job(plan))
    sweep = sweep_of(plan)
    names = {key: variable_of(key) for key in sweep.space}
    # The shell keeps text in single quotes unchanged; the rules refuse text with such quotes.
    chosen = "".join(
        f" {name}='${{{{search_space.{plain_name(key)}}}}}'" for key, name in names.items()
    )
    return {
        "$schema": SCHEMA,
        "type": "sweep",
        "name": plan.run_id,
        **{key: job[key] for key in OF_SWEEP},
        "trial": {
            **{key: job[key] for key in OF_TRIAL},
            "command": command_of(list(job["inputs"]), chosen),
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


def shared_job(plan: Plan) -> JobDocument:
    """Return the job document of all trials; their launchers fill in values and run ids."""
    room, rules = room_for(plan)
    return replace(job_of(room), tuned=rules, service_metric=sweep_of(plan).objective.metric)


def rehearsed_trial(plan: Plan) -> dict[str, Any]:
    """Return the command job of a trial whose values are arguments of the plan."""
    document = trial_document(sweep_document(plan), plan.run_id, trial_texts(plan))
    return {**document, "display_name": plan.spec.name}


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
