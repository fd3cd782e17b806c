"""Section `sweep` of job.yaml: the space, the choice of values, and the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from cloudtrain.errors import Issue
from cloudtrain.spec.fields import expect
from cloudtrain.spec.search_space import (
    FORMS,
    Dimension,
    Scalar,
    points_of,
    read_points,
    read_space,
)
from cloudtrain.spec.section import Duration, Money, Section

MAX_TRIALS = 10_000
MAX_PARALLEL = 100
"""SageMaker's limit per tuning job (ResourceLimits, 10 by default)."""


def _read_metric(value: Any) -> str:
    return str(expect(value, str, "a metric name, such as val_accuracy"))


class Objective(Section):
    """Number that measures how good a trial is."""

    metric: Annotated[str, BeforeValidator(_read_metric), WithJsonSchema({"type": "string"})] = (
        Field(description=("a metric of the program, such as val_accuracy; the last value counts"))
    )
    goal: Literal["minimize", "maximize"] = Field(
        description="whether less or more of it is better"
    )
    target: float | None = Field(
        None,
        allow_inf_nan=False,
        description="end the sweep when a trial reports this value or a better one",
    )


class EarlyStopping(Section):
    """Successive halving: which trials end early, by reports of the objective."""

    grace: int | None = Field(
        None,
        ge=1,
        description=(
            "the first rung: reports before a trial may end; default: 1, or a ninth of max for"
            " fewer than 100 trials"
        ),
    )
    eta: int | None = Field(
        None,
        ge=2,
        le=100,
        description=(
            "the best 1/eta of a rung continue; the next rung has eta times the reports;"
            " default: 3, or 2 for fewer than 100 trials"
        ),
    )
    max: int | None = Field(
        None, ge=1, description="reports of a complete trial, such as its epochs"
    )
    promote: Literal["auto", "always", "never"] = Field(
        "auto",
        description=(
            "end each trial at its rung and resume the best from their checkpoints; auto: only"
            " on this machine, where a start is cheap"
        ),
    )


FEW_TRIALS = 100
"""With fewer trials the first comparison is later, because early reports say little."""
FIRST_RUNG = 9
"""Part of a complete trial before the first rung of few trials."""


def default_rungs(trials: int, last: int | None) -> tuple[int, int]:
    """Return the default first rung and eta. `last`: reports of a complete trial, if known.

    Measured on LCBench's surrogate, see docs/figures.md.
    """
    if trials >= FEW_TRIALS:
        return 1, 3
    return (1 if last is None else max(1, round(last / FIRST_RUNG))), 2


class Budget(Section):
    """Limit of all trials together. No trial starts that could exceed it."""

    max_time: Duration = Field(None, description="end all trials after this long, such as 6 h")
    max_cost: Money = Field(None, description="maximum cost of all trials together, such as 50 USD")


class RayResources(Section):
    """Resources of Ray for a trial, if they differ from `resources`."""

    cpus: int | None = Field(None, ge=1, description="CPUs of a trial; default: one per process")
    gpus: float | None = Field(
        None,
        ge=0,
        le=64,
        description=(
            "GPUs of a trial; below 1: several trials share one GPU; default: resources.gpus"
        ),
    )


class Sweep(Section):
    """Search over settings of the job. Each trial is a run with other values."""

    objective: Objective = Field(description="the metric to improve, and its goal")
    space: Annotated[
        Mapping[str, Dimension],
        BeforeValidator(read_space),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "array"]}}),
    ] = Field(description=f"settings and their possible values: {FORMS}, or a list")
    method: Literal["grid", "random", "bayesian", "asha"] = Field(
        "bayesian",
        description="how values are chosen; asha: at random, with early stopping",
    )
    sampler: Literal["tpe", "random"] | None = Field(
        None, description="how asha chooses values: random, or tpe, which learns from trials"
    )
    trials: int | None = Field(
        None, ge=1, le=MAX_TRIALS, description="number of trials; default of a grid: all points"
    )
    try_first: Annotated[
        tuple[Mapping[str, Scalar], ...],
        BeforeValidator(read_points),
        WithJsonSchema({"type": "array", "items": {"type": "object"}}),
    ] = Field((), description="points to try first; missing settings are chosen")
    learn_from: str | None = Field(
        None, description="an earlier sweep with the same objective, whose results tpe starts from"
    )
    parallel: int = Field(1, ge=1, le=MAX_PARALLEL, description="number of trials at once")
    early_stopping: EarlyStopping | None = Field(
        None, description="end trials that fall behind; always on for asha"
    )
    budget: Budget = Budget.model_construct()
    retries: int = Field(
        0,
        ge=0,
        le=10,
        description="restarts of a failed trial before it counts as failed",
    )
    engine: Literal["portable", "native", "ray"] = Field(
        "portable",
        description="portable: from this machine, for any provider; native: the cloud's own",
    )
    ray: RayResources = RayResources.model_construct()
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="seed of the choices; the same seed gives the same values",
    )

    @property
    def stopping(self) -> EarlyStopping | None:
        """Rules of early stopping, with defaults for asha, or None."""
        return self.early_stopping or (EarlyStopping() if self.method == "asha" else None)

    @property
    def chosen_sampler(self) -> str:
        """Chooser of the values: tpe, random or grid."""
        default = {"bayesian": "tpe", "asha": "random"}
        return self.sampler or default.get(self.method, self.method)

    @property
    def trial_count(self) -> int:
        """Number of trials. A grid defaults to all points."""
        size = self.grid_size
        return min(size, self.trials or size) if self.method == "grid" else self.trials or 1

    @property
    def grid_size(self) -> int:
        """Number of points of the grid; 0 for a range of real numbers."""
        return points_of(self.space) or 0

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:
        """Return fields of the section that are impossible together."""
        from cloudtrain.spec.sweep_rules import contradictions

        issues = contradictions(section, spec)
        return [replace(issue, path=("sweep", *issue.path)) for issue in issues]
