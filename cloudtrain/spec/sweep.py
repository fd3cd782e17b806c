"""Section `sweep` of job.yaml, and its fields that are valid alone but impossible together."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from cloudtrain.errors import Issue, Keys
from cloudtrain.spec.fields import expect
from cloudtrain.spec.search_space import (
    FORMS,
    Dimension,
    Normal,
    Scalar,
    Uniform,
    plain_value,
    points_of,
    read_points,
    read_space,
)
from cloudtrain.spec.section import Duration, Money, Section
from cloudtrain.spec.varied_settings import (
    arguments_of,
    dimension_of,
    path_of,
    report_count,
    setting_issues,
    unreported,
)
from cloudtrain.spec.yaml_document import mapping_of

MAX_TRIALS = 10_000
MAX_PARALLEL = 100
"""SageMaker's limit per tuning job (ResourceLimits, 10 by default)."""

FEW_TRIALS = 100
"""With fewer trials the first comparison is later, because early reports say little."""
FIRST_RUNG = 9
"""Part of a complete trial before the first rung of few trials."""

SAMPLERS = {
    "grid": (),
    "random": ("random",),
    "bayesian": ("tpe",),
    "asha": ("random", "tpe"),
}
"""Samplers of each method, the default first."""

MAX_GRID = 10_000
"""Maximum points of a grid without `trials`."""


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


def default_rungs(trials: int, last: int | None) -> tuple[int, int]:
    """Return the default first rung and eta. `last`: reports of a complete trial, if known.

    Measured on LCBench's surrogate, see docs/figures.md.
    """
    if trials >= FEW_TRIALS:
        return 1, 3
    if last is None:
        return 1, 2

    return max(1, round(last / FIRST_RUNG)), 2


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
        if self.early_stopping is None and self.method == "asha":
            return EarlyStopping()

        return self.early_stopping

    @property
    def chosen_sampler(self) -> str:
        """Chooser of the values: tpe, random or grid."""
        default = {"bayesian": "tpe", "asha": "random"}
        return self.sampler or default.get(self.method, self.method)

    @property
    def trial_count(self) -> int:
        """Number of trials. A grid defaults to all points."""
        size = self.grid_size
        if self.method == "grid":
            return min(size, self.trials or size)

        return self.trials or 1

    @property
    def grid_size(self) -> int:
        """Number of points of the grid; 0 for a range of real numbers."""
        return points_of(self.space) or 0

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:
        """Return fields of the section that are impossible together."""
        issues = contradictions(section, spec)
        return [replace(issue, path=("sweep", *issue.path)) for issue in issues]


def contradictions(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield each issue at its place below `sweep`."""
    space = mapping_of(section, "space")
    yield from _method(section, space)
    yield from setting_issues(space)
    if isinstance(spec.get("args"), list):
        names = [str(key) for key in space if path_of(str(key))[0] == "args"]
        if names:
            hint = "write args as a mapping (lr: 0.1)"
            yield Issue(
                ("space", names[0]),
                "sets an argument by name, but args is a list",
                hint,
            )
    else:
        yield from _dashed(space, mapping_of(spec, "args"))

    yield from _objective(section, spec)
    yield from _stopping(section, spec)
    yield from _budget(section)
    yield from _engine(section, spec)
    yield from _known_points(section, space)


def _method(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    method = section.get("method", "bayesian")
    if method == "grid":
        yield from _grid(space, section.get("trials"))
    elif isinstance(method, str) and SAMPLERS.get(method) and section.get("trials") is None:
        yield Issue(("trials",), "is missing", "set the number of trials, such as trials: 20")

    sampler = section.get("sampler")
    if sampler in ("tpe", "random") and method in SAMPLERS and sampler not in SAMPLERS[method]:
        samplers = " or ".join(SAMPLERS[method])
        hint = "remove it"
        if samplers:
            hint = f"use {samplers}"

        yield Issue(("sampler",), f"{sampler} does not work with the method {method}", hint)


def _grid(space: Mapping[str, Any], trials: Any) -> Iterator[Issue]:
    dimensions = {}
    for key, value in space.items():
        dimension = dimension_of(value)
        if isinstance(dimension, (Uniform, Normal)):
            message = "is a continuous range, which a grid cannot enumerate"
            yield Issue(
                ("space", key), message, "list values with choice(…), or use method: random"
            )
        elif dimension is not None:
            dimensions[str(key)] = dimension

    size = points_of(dimensions) or 0
    if trials is None and size > MAX_GRID:
        hint = "use fewer values, or method: random"
        yield Issue(("space",), f"is a grid of {size:,} points; the limit is {MAX_GRID:,}", hint)


def _known_points(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield problems of try_first."""
    if section.get("method") == "grid" and section.get("try_first"):
        yield Issue(
            ("try_first",),
            "does not apply to grid, which has a fixed order",
            "use method: random or bayesian",
        )

    points = section.get("try_first")
    if not isinstance(points, list):
        return

    for at, point in enumerate(points):
        if isinstance(point, dict):
            for key, value in point.items():
                yield from _known_value(("try_first", at, str(key)), key, value, space)


def _known_value(path: Keys, key: Any, value: Any, space: Mapping[str, Any]) -> Iterator[Issue]:
    if key not in space:
        message = f"{key!r} is not a setting of the space"
        yield Issue(path, message, ", ".join(map(str, space)))
        return

    dimension = dimension_of(space[key])
    if dimension is not None and not dimension.contains(plain_value(value)):
        message = f"{value!r} is not in {dimension.text()}"
        yield Issue(path, message, "use a value of the space, or enlarge the space")


def _dashed(space: Mapping[str, Any], args: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield settings that `args` spells with dashes: `--lr` and `lr` would both be sent."""
    for key in map(str, space):
        section, *names = path_of(key)
        if section == "args" and (written := f"--{names[-1]}") in args:
            message = f"is {written} under args, so the program would get it twice"
            yield Issue(("space", key), message, f"write {names[-1]} under args")


def _objective(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    metric = mapping_of(section, "objective").get("metric")
    is_trainer = isinstance(metric, str) and spec.get("entrypoint") is None
    if is_trainer and (problem := unreported(str(metric), mapping_of(spec, "args"))):
        yield Issue(("objective", "metric"), *problem)


def _stopping(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield problems of early stopping: too few reports, or no known end for promotion."""
    written = section.get("early_stopping")
    stopping: Mapping[str, Any] = {}
    at: Keys = ("method",)
    if isinstance(written, dict):
        stopping = written
        at = ("early_stopping",)
    elif section.get("method") != "asha":
        return

    grace = stopping.get("grace") or 1
    last = stopping.get("max")
    if last is not None:
        whole = last
    else:
        whole = _reports(section, spec)

    if isinstance(grace, int) and isinstance(whole, int) and grace >= whole > 0:
        message = f"the first comparison is at report {grace}, but a trial makes only {whole}"
        yield Issue(at, message, "train more epochs, compare earlier, or remove early stopping")

    if stopping.get("promote") == "always" and whole is None:
        hint = "set early_stopping.max to the reports of a complete trial, such as its epochs"
        yield Issue(
            ("early_stopping", "promote"),
            "needs the length of a complete trial, which is unknown",
            hint,
        )


def _reports(section: Mapping[str, Any], spec: Mapping[str, Any]) -> int | None:
    """Return how often the shared trainer reports the objective; None if unknown."""
    metric = mapping_of(section, "objective").get("metric")
    if spec.get("entrypoint") is not None or not isinstance(metric, str):
        return None
    space = {str(key): dimension_of(value) for key, value in mapping_of(section, "space").items()}
    varied = arguments_of({key: dimension for key, dimension in space.items() if dimension})
    return report_count(metric, mapping_of(spec, "args"), varied)


def _budget(section: Mapping[str, Any]) -> Iterator[Issue]:
    if mapping_of(section, "budget").get("max_cost") is None:
        return
    for key in map(str, mapping_of(section, "space")):
        if path_of(key)[0] == "resources":
            message = "changes the cost of a trial, so a budget in money cannot be kept"
            hint = "run a sweep per kind of machine, or use budget.max_time"
            yield Issue(("space", key), message, hint)


def _engine(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    engine = section.get("engine")
    space = mapping_of(section, "space")
    promotes = mapping_of(section, "early_stopping").get("promote") == "always"
    if engine == "native":
        for key in map(str, space):
            if path_of(key)[0] != "args":
                message = "is not an argument, and the native engine varies only arguments"
                yield Issue(("space", key), message, "use engine: portable")

    if engine in ("native", "ray") and promotes:
        message = f"resumes trials, but the engine {engine} can only end them"
        yield Issue(("early_stopping", "promote"), message, "use engine: portable")

    if engine == "ray":
        yield from _on_ray(section, spec)


def _on_ray(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield settings that one worker of a Ray cluster cannot do."""
    resources = mapping_of(spec, "resources")
    nodes = resources.get("nodes", 1)
    if nodes != 1 or "resources.nodes" in mapping_of(section, "space"):
        yield Issue(
            ("engine",),
            "runs each trial on one node, but resources.nodes is set",
            "use one node per trial, or engine: portable",
        )
    gpus = mapping_of(section, "ray").get("gpus")
    job_gpus = resources.get("gpus", 0)
    if not isinstance(gpus, int | float) or not isinstance(job_gpus, int):
        return
    if gpus > 0 and max(1, gpus) != job_gpus:
        message = f"gives a trial {gpus:g} GPUs, but resources.gpus is {job_gpus}"
        yield Issue(("ray", "gpus"), message, f"set resources: {{gpus: {max(1, int(gpus))}}}")
