"""Fields of `sweep` that are valid alone but impossible together. Values are raw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec.batch_sizes import METRIC as BATCH_SIZE_METRIC
from cloudtrain.spec.objective import report_count, unreported
from cloudtrain.spec.search_space import Choice, Integers, Uniform, plain_value
from cloudtrain.spec.varied_settings import arguments_of, dimension_of, path_of, setting_issues
from cloudtrain.spec.yaml_document import mapping_of, quantity_of
from cloudtrain.units import parse_duration, parse_money

SAMPLERS = {
    "grid": (),
    "random": ("random",),
    "bayesian": ("tpe", "gp"),
    "asha": ("random", "tpe"),
    "batch_size": (),
}
"""Samplers of each method, the default first."""

MAX_GRID = 10_000
"""Maximum points of a grid without `trials`."""
SHORTEST_SECONDS = 60
"""Minimum time budget."""


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
    yield from _budget(section, spec)
    yield from _engine(section, spec)
    yield from _known_before(section, space)
    yield from _lent_by_ray(section, spec)
    if section.get("method") == "batch_size":
        yield from _batch_size_search(section, spec)


def _method(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    method = section.get("method", "bayesian")
    if method == "grid":
        yield from _grid(space, section.get("trials"))
    elif isinstance(method, str) and SAMPLERS.get(method) and section.get("trials") is None:
        yield Issue(("trials",), "is missing", "set the number of trials, such as trials: 20")
    sampler = section.get("sampler")
    all_samplers = {name for names in SAMPLERS.values() for name in names}
    is_sampler = isinstance(sampler, str) and sampler in all_samplers
    if is_sampler and method in SAMPLERS and sampler not in SAMPLERS[method]:
        samplers = " or ".join(SAMPLERS[method])
        hint = f"use {samplers}" if samplers else "remove it"
        yield Issue(("sampler",), f"{sampler} does not work with the method {method}", hint)


def _grid(space: Mapping[str, Any], trials: Any) -> Iterator[Issue]:
    size = 1
    for key, value in space.items():
        dimension = dimension_of(value)
        if isinstance(dimension, Uniform):
            message = "is a continuous range, which a grid cannot enumerate"
            yield Issue(
                ("space", key), message, "list values with choice(…), or use method: random"
            )
        elif isinstance(dimension, Choice):
            size *= len(dimension.values)
        elif isinstance(dimension, Integers):
            size *= dimension.size
    if trials is None and size > MAX_GRID:
        hint = "use fewer values, or method: random"
        yield Issue(("space",), f"is a grid of {size:,} points; the limit is {MAX_GRID:,}", hint)


def _known_before(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield problems of try_first, learn_from and the target."""
    method = section.get("method", "bayesian")
    if method in ("grid", "batch_size") and section.get("try_first"):
        yield Issue(
            ("try_first",),
            f"does not apply to {method}, which has a fixed order",
            "use method: random or bayesian",
        )
    if method == "batch_size" and mapping_of(section, "objective").get("target") is not None:
        yield Issue(
            ("objective", "target"), "does not apply to a search for a batch size", "remove it"
        )
    if section.get("learn_from") is not None and not _learns(section):
        hint = "use method: bayesian, or remove it"
        yield Issue(
            ("learn_from",), "does not apply: this method does not learn from other trials", hint
        )

    points = section.get("try_first")
    if not isinstance(points, list):
        return
    trials = section.get("trials")
    if isinstance(trials, int) and len(points) > trials:
        yield Issue(
            ("try_first",),
            f"has {len(points)} points for {trials} trials",
            "set more trials",
        )
    for at, point in enumerate(points):
        for key, value in point.items() if isinstance(point, dict) else ():
            dimension = dimension_of(space[key]) if key in space else None
            if key not in space:
                message = f"{key!r} is not a setting of the space"
                yield Issue(("try_first", at, str(key)), message, ", ".join(map(str, space)))
            elif dimension is not None and not dimension.contains(plain_value(value)):
                message = f"{value!r} is not in {dimension.text()}"
                yield Issue(
                    ("try_first", at, str(key)),
                    message,
                    "use a value of the space, or enlarge the space",
                )


def _learns(section: Mapping[str, Any]) -> bool:
    method = section.get("method", "bayesian")
    return method == "bayesian" or (method == "asha" and section.get("sampler") == "tpe")


def _dashed(space: Mapping[str, Any], args: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield settings that `args` spells with dashes: `--lr` and `lr` would both be sent."""
    for key in map(str, space):
        section, *names = path_of(key)
        if section == "args" and (written := f"--{names[-1]}") in args:
            message = f"is {written} under args, so the program would get it twice"
            yield Issue(("space", key), message, f"write {names[-1]} under args")


def _objective(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    metric = mapping_of(section, "objective").get("metric")
    if section.get("method") == "batch_size":  # checked by _batch_size_search
        return
    is_trainer = isinstance(metric, str) and spec.get("entrypoint") is None
    if is_trainer and (problem := unreported(str(metric), mapping_of(spec, "args"))):
        yield Issue(("objective", "metric"), *problem)


def _stopping(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield problems of early stopping: too few reports, or no known end for promotion."""
    written = section.get("early_stopping")
    stopping = written if isinstance(written, dict) else {}
    if not isinstance(written, dict) and section.get("method") != "asha":
        return
    at = ("early_stopping",) if isinstance(written, dict) else ("method",)
    grace = stopping.get("grace") or 1
    last = stopping.get("max")
    whole = last if last is not None else _reports(section, spec)
    if whole == 1:
        metric = mapping_of(section, "objective").get("metric")
        message = f"{metric} is reported only once, at the end, so no trial can end early"
        yield Issue(
            ("early_stopping", "max") if last == 1 else at,
            message,
            "train more epochs, or remove early stopping",
        )
    elif isinstance(grace, int) and isinstance(whole, int) and grace >= whole > 0:
        message = f"the first comparison is at report {grace}, but a trial makes only {whole}"
        yield Issue(
            ("early_stopping", "grace") if "grace" in stopping else at,
            message,
            f"set less than {whole}",
        )
    if stopping.get("promote") == "always":
        yield from _promotion(whole, spec)


def _promotion(whole: Any, spec: Mapping[str, Any]) -> Iterator[Issue]:
    at = ("early_stopping", "promote")
    if whole is None:
        hint = "set early_stopping.max to the reports of a complete trial, such as its epochs"
        yield Issue(at, "needs the length of a complete trial, which is unknown", hint)
    args = mapping_of(spec, "args")
    for name in ("no-resume", "eval-only"):
        if spec.get("entrypoint") is None and args.get(name) is True:
            message = f"needs checkpoints, but --{name} starts every run anew"
            yield Issue(at, message, f"remove args.{name}")


def _reports(section: Mapping[str, Any], spec: Mapping[str, Any]) -> int | None:
    """Return how often the shared trainer reports the objective; None if unknown."""
    metric = mapping_of(section, "objective").get("metric")
    if spec.get("entrypoint") is not None or not isinstance(metric, str):
        return None
    space = {str(key): dimension_of(value) for key, value in mapping_of(section, "space").items()}
    varied = arguments_of({key: dimension for key, dimension in space.items() if dimension})
    return report_count(metric, mapping_of(spec, "args"), varied)


def _budget(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    budget = mapping_of(section, "budget")
    limits = mapping_of(spec, "limits")
    usd = quantity_of(budget.get("max_cost"), parse_money)
    trial_usd = quantity_of(limits.get("max_cost"), parse_money)
    if usd is not None and trial_usd is not None and trial_usd > usd:
        message = f"{usd:.2f} USD for all trials is less than limits.max_cost of one trial, {trial_usd:.2f} USD"
        yield Issue(("budget", "max_cost"), message, "raise the budget, or lower limits.max_cost")
    seconds = quantity_of(budget.get("max_time"), parse_duration)
    if seconds is not None and seconds < SHORTEST_SECONDS:
        yield Issue(
            ("budget", "max_time"),
            f"must be at least {SHORTEST_SECONDS} s",
            "raise it",
        )
    if usd is not None:
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
        who = "Ray's ASHA" if engine == "ray" else "the native engine"
        message = f"resumes trials, but {who} can only end them"
        yield Issue(("early_stopping", "promote"), message, "use engine: portable")
    if engine == "ray":
        yield from _on_ray(space, spec)


def _lent_by_ray(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield problems of `ray`: its GPUs must match the GPUs of a trial."""
    lent = mapping_of(section, "ray")
    if lent and section.get("engine") != "ray":
        yield Issue(("ray",), "applies only to engine: ray", "use engine: ray, or remove it")
    gpus = lent.get("gpus")
    job_gpus = mapping_of(spec, "resources").get("gpus", 0)
    if not isinstance(gpus, int | float) or not isinstance(job_gpus, int):
        return
    if gpus > 1 and gpus != int(gpus):
        yield Issue(
            ("ray", "gpus"),
            f"expected whole GPUs or a part of one, got {gpus:g}",
            "for example 0.5, 1 or 2",
        )
    elif gpus > 0 and max(1, gpus) != job_gpus:
        message = f"gives a trial {gpus:g} GPUs, but resources.gpus is {job_gpus}"
        yield Issue(("ray", "gpus"), message, f"set resources: {{gpus: {max(1, int(gpus))}}}")


def _on_ray(space: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield settings that one worker of a Ray cluster cannot do."""
    nodes = mapping_of(spec, "resources").get("nodes")
    hint = "use one node per trial, or engine: portable"
    if isinstance(nodes, int) and nodes > 1 and "resources.nodes" not in space:
        yield Issue(
            ("engine",),
            f"runs each trial on one node, but resources.nodes is {nodes}",
            hint,
        )
    if "resources.nodes" in space:
        yield Issue(("space", "resources.nodes"), "is always 1 in a Ray cluster", hint)


def _batch_size_search(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield what is impossible together in a search for a batch size."""
    for key, why in _UNUSED_IN_SEARCH.items():
        if section.get(key) is not None:
            yield Issue((key,), f"does not apply to the method batch_size: {why}", "remove it")
    if section.get("parallel", 1) != 1:
        yield Issue(
            ("parallel",),
            "must be 1 for the method batch_size: each size depends on the previous one",
            "remove it",
        )
    if section.get("engine") in ("native", "ray"):
        message = "cannot search for a batch size"
        yield Issue(("engine",), message, "use engine: portable")
    yield from _batch_size_space(section.get("space"))
    objective = section.get("objective")
    metric = objective.get("metric") if isinstance(objective, dict) else None
    if spec.get("entrypoint") is None and isinstance(metric, str) and metric != BATCH_SIZE_METRIC:
        message = (
            f"the shared trainer reports only {BATCH_SIZE_METRIC} in a search for a batch size"
        )
        yield Issue(
            ("objective", "metric"),
            message,
            f"objective: {{metric: {BATCH_SIZE_METRIC}, goal: maximize}}",
        )


_UNUSED_IN_SEARCH = {
    "trials": "the search ends by itself",
    "early_stopping": "each trial ends after one measurement",
}


def _batch_size_space(space: Any) -> Iterator[Issue]:
    hint = "one range, such as batch-size: int(1, 4096)"
    if not isinstance(space, dict) or not space:
        return
    for name in list(space)[1:]:
        yield Issue(
            ("space", str(name)), "is a second setting; the method batch_size varies only one", hint
        )
    key, written = next(iter(space.items()))
    dimension = dimension_of(written)
    if dimension is not None and not isinstance(dimension, Integers):
        yield Issue(
            ("space", str(key)),
            "must be a range of whole numbers for the method batch_size",
            hint,
        )
    elif isinstance(dimension, Integers) and dimension.step > 1:
        yield Issue(
            ("space", str(key)),
            "must not have a step: all sizes are multiples of the smallest",
            hint,
        )
    elif isinstance(dimension, Integers) and dimension.low < 1:
        yield Issue(
            ("space", str(key)),
            f"starts at {dimension.low}, but a batch has at least 1 sample",
            hint,
        )
