"""The section `sweep` of job.yaml: which settings are varied, how they are chosen, and what the
search may spend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from cloudtrain.issues import Issue, Keys
from cloudtrain.spec.batch_sizes import most_trials
from cloudtrain.spec.fields import FieldError, expect
from cloudtrain.spec.search_space import (
    FORMS,
    Choice,
    Dimension,
    Integers,
    Scalar,
    read_points,
    read_space,
)
from cloudtrain.spec.section import Duration, Money, Section

MAX_TRIALS = 10_000
MAX_PARALLEL = 100
"""SageMaker runs at most 100 training jobs of one tuning job at once (ResourceLimits, by default
10).
"""


def _read_metric(value: Any) -> str:
    return str(expect(value, str, "the name of a metric, such as val_accuracy"))


_ELSEWHERE = {
    "tpe": "method: bayesian, whose sampler is tpe",
    "gp": "method: bayesian, with sampler: gp",
    "qmc": "method: random, or method: bayesian, whose sampler is tpe",
    "hyperband": "method: asha",
    "bohb": "method: asha, with sampler: tpe",
    "batch-size": "method: batch_size",
}
"""Names of methods as other tools have them."""


def _read_method(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in _ELSEWHERE:
        raise FieldError(f"there is no method {value!r}", _ELSEWHERE[value.lower()])
    return value


def _read_sampler(value: Any) -> Any:
    if value == "qmc":
        raise FieldError("there is no sampler 'qmc'", "sampler: random; bayesian and asha have tpe")
    return value


class Objective(Section):
    """The number that tells how good a trial is."""

    metric: Annotated[str, BeforeValidator(_read_metric), WithJsonSchema({"type": "string"})] = (
        Field(
            description=(
                "a metric that the program reports, such as val_accuracy; its latest value counts"
            )
        )
    )
    goal: Literal["minimize", "maximize"] = Field(
        description="whether less or more of it is better"
    )
    target: float | None = Field(
        None,
        allow_inf_nan=False,
        description="the sweep ends when a trial reports this value, or a better one",
    )


class EarlyStopping(Section):
    """Which trials are ended before their time: successive halving, by reports of the objective."""

    grace: int | None = Field(
        None,
        ge=1,
        description=(
            "the first rung: no trial ends before so many reports; default: 1, and of fewer than"
            " 100 trials a ninth of max"
        ),
    )
    eta: int | None = Field(
        None,
        ge=2,
        le=100,
        description=(
            "the best 1/eta of a rung go on; the next rung has eta times the reports; default: 3,"
            " and of fewer than 100 trials 2"
        ),
    )
    max: int | None = Field(
        None, ge=1, description="reports of a trial that trains to its end, such as its epochs"
    )
    promote: Literal["auto", "always", "never"] = Field(
        "auto",
        description=(
            "end each trial at its rung, and bring the best back from their checkpoints; "
            "auto: where a start costs little, on this machine"
        ),
    )


FEW_TRIALS = 100
"""With fewer, a trial is compared later: what is best after the first reports is seldom best after
the last.
"""
FIRST_RUNG = 9
"""The first rung of few trials is this part of a whole one."""


def default_rungs(trials: int, last: int | None) -> tuple[int, int]:
    """Return the first rung and eta of a sweep that does not say. `last`: the reports of a whole
    trial, if known.

    Measured on LCBench's surrogate, see docs/figures.md.
    """
    if trials >= FEW_TRIALS:
        return 1, 3
    return (1 if last is None else max(1, round(last / FIRST_RUNG))), 2


class Budget(Section):
    """What all trials together may take: no trial is started that could exceed it, so that it holds
    unwatched.
    """

    max_time: Duration = Field(None, description="no trial goes on after this long, such as 6 h")
    max_cost: Money = Field(None, description="all trials together never cost more, such as 50 USD")


class RayResources(Section):
    """What Ray lends a trial of its cluster, where that is not what `resources` says."""

    cpus: int | None = Field(
        None, ge=1, description="CPUs of a trial; default: as many as it has processes"
    )
    gpus: float | None = Field(
        None,
        ge=0,
        le=64,
        description=(
            "GPUs of a trial; less than 1: so many trials share one GPU; default: resources.gpus"
        ),
    )


class Sweep(Section):
    """A search over settings of the job: each trial is a run of it with other values."""

    objective: Objective = Field(description="the metric to improve, and its goal")
    space: Annotated[
        Mapping[str, Dimension],
        BeforeValidator(read_space),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "array"]}}),
    ] = Field(description=f"settings, each with what it may be: {FORMS}, or a list")
    method: Annotated[
        Literal["grid", "random", "bayesian", "asha", "batch_size"], BeforeValidator(_read_method)
    ] = Field(
        "bayesian",
        description=(
            "how values are chosen; asha: at random, and early stopping ends what is not worth"
            " it; batch_size: the largest that fits into memory, and the fastest"
        ),
    )
    sampler: Annotated[Literal["tpe", "gp", "random"] | None, BeforeValidator(_read_sampler)] = (
        Field(
            None,
            description="how bayesian (tpe, gp) and asha (random, tpe) choose; default: the first",
        )
    )
    trials: int | None = Field(
        None, ge=1, le=MAX_TRIALS, description="how many trials; a grid has all of its own"
    )
    try_first: Annotated[
        tuple[Mapping[str, Scalar], ...],
        BeforeValidator(read_points),
        WithJsonSchema({"type": "array", "items": {"type": "object"}}),
    ] = Field((), description="known points, tried before all others; settings left out are chosen")
    learn_from: str | None = Field(
        None,
        description=(
            "an earlier sweep of the same space and metric, whose trials tpe and gp know from the"
            " start"
        ),
    )
    parallel: int = Field(1, ge=1, le=MAX_PARALLEL, description="how many trials run at once")
    early_stopping: EarlyStopping | None = Field(
        None, description="ends trials that are behind; asha always has it"
    )
    budget: Budget = Budget.model_construct()
    retries: int = Field(
        0,
        ge=0,
        le=10,
        description="how often a failed trial is run again before it counts as failed",
    )
    engine: Literal["auto", "portable", "native", "ray"] = Field(
        "auto",
        description=(
            "portable: from this machine, for any provider; native: the cloud's own; auto: portable"
        ),
    )
    ray: RayResources = RayResources.model_construct()
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="of the choices; the same seed gives the same ones"
    )

    @property
    def stopping(self) -> EarlyStopping | None:
        """The rules of early stopping, with those of asha by default; None for none."""
        return self.early_stopping or (EarlyStopping() if self.method == "asha" else None)

    @property
    def chosen_sampler(self) -> str:
        """What chooses the values: tpe, gp, random, grid or batch_size."""
        default = {"bayesian": "tpe", "asha": "random"}
        return self.sampler or default.get(self.method, self.method)

    @property
    def trial_count(self) -> int:
        """How many trials are asked for: of a grid by default all, at most `trials`; of batch sizes
        the most.
        """
        if self.method == "batch_size":
            ranges = [item for item in self.space.values() if isinstance(item, Integers)]
            return max((most_trials(item.low, item.high) for item in ranges), default=1)
        size = self.grid_size
        return min(size, self.trials or size) if self.method == "grid" else self.trials or 1

    @property
    def grid_size(self) -> int:
        """How many points a grid over the space has; 0 where it has a range of real numbers."""
        size = 1
        for dimension in self.space.values():
            if isinstance(dimension, Choice):
                size *= len(dimension.values)
            elif isinstance(dimension, Integers):
                size *= dimension.size
            else:
                return 0
        return size

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:
        """What is right each by itself but impossible together."""
        from cloudtrain.spec.sweep_rules import contradictions

        return [issue_at(("sweep",), issue) for issue in contradictions(section, spec)]


def issue_at(keys: Keys, issue: Issue) -> Issue:
    """The same issue, below these keys."""
    from dataclasses import replace

    return replace(issue, path=(*keys, *issue.path))
