"""What in a `sweep` section is right each by itself, but impossible together. Of values as YAML
gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec import batch_sizes
from cloudtrain.spec.objective import report_count, unreported
from cloudtrain.spec.raw_values import mapping_of, quantity_of
from cloudtrain.spec.search_space import Choice, Integers, Uniform, plain_value
from cloudtrain.spec.varied_settings import arguments_of, dimension_of, path_of, setting_issues
from cloudtrain.units import parse_duration, parse_money

SAMPLERS = {
    "grid": (),
    "random": ("random",),
    "bayesian": ("tpe", "gp"),
    "asha": ("random", "tpe"),
    "batch_size": (),
}
"""The samplers of each method; the first is the default."""

MAX_GRID = 10_000
"""Points of a grid that says no number of trials."""
SHORTEST_SECONDS = 60
"""A budget of less than this trains nothing."""


def contradictions(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Each at its place below `sweep`."""
    space = mapping_of(section, "space")
    yield from _method(section, space)
    yield from setting_issues(space)
    if isinstance(spec.get("args"), list):
        names = [str(key) for key in space if path_of(str(key))[0] == "args"]
        if names:
            hint = "write args as a mapping (lr: 0.1)"
            yield Issue(
                ("space", names[0]),
                "sets an argument by its name, and args is a list, verbatim",
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
        yield from batch_sizes.contradictions(section, spec)


def _method(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    method = section.get("method", "bayesian")
    if method == "grid":
        yield from _grid(space, section.get("trials"))
    elif isinstance(method, str) and SAMPLERS.get(method) and section.get("trials") is None:
        yield Issue(("trials",), "is missing: how many trials are wanted", "trials: 20")
    sampler = section.get("sampler")
    known = {name for names in SAMPLERS.values() for name in names}
    if (
        isinstance(sampler, str)
        and sampler in known
        and method in SAMPLERS
        and sampler not in SAMPLERS[method]
    ):
        others = " or ".join(SAMPLERS[method])
        hint = f"{method} takes {others}" if others else "it has no choice of them: leave it out"
        yield Issue(("sampler",), f"is not for the method {method}: {sampler}", hint)


def _grid(space: Mapping[str, Any], trials: Any) -> Iterator[Issue]:
    size = 1
    for key, value in space.items():
        dimension = dimension_of(value)
        if isinstance(dimension, Uniform):
            message = "has no end of values, and a grid takes each of them"
            yield Issue(
                ("space", key), message, "choice(…) names those to try; method: random draws some"
            )
        elif isinstance(dimension, Choice):
            size *= len(dimension.values)
        elif isinstance(dimension, Integers):
            size *= dimension.size
    if trials is None and size > MAX_GRID:
        hint = "fewer values; method: random draws some of them"
        yield Issue(
            ("space",), f"is a grid of {size:,} points, and at most {MAX_GRID:,} are tried", hint
        )


def _known_before(section: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[Issue]:
    """Points to try first, an earlier sweep and a target, where they do not fit the search."""
    method = section.get("method", "bayesian")
    if method in ("grid", "batch_size") and section.get("try_first"):
        yield Issue(
            ("try_first",),
            f"{method} tries values in an order of its own",
            "method: random, or bayesian",
        )
    if method == "batch_size" and mapping_of(section, "objective").get("target") is not None:
        yield Issue(
            ("objective", "target"), "plays no part in a search for a batch size", "leave it out"
        )
    if section.get("learn_from") is not None and not _learns(section):
        hint = "method: bayesian, or leave it out"
        yield Issue(("learn_from",), "values are chosen without learning from other trials", hint)

    points = section.get("try_first")
    if not isinstance(points, list):
        return
    trials = section.get("trials")
    if isinstance(trials, int) and len(points) > trials:
        yield Issue(
            ("try_first",),
            f"has {len(points)} points, and there are {trials} trials",
            "more trials",
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
                    ("try_first", at, str(key)), message, "a value of the space, or a larger space"
                )


def _learns(section: Mapping[str, Any]) -> bool:
    method = section.get("method", "bayesian")
    return method == "bayesian" or (method == "asha" and section.get("sampler") == "tpe")


def _dashed(space: Mapping[str, Any], args: Mapping[str, Any]) -> Iterator[Issue]:
    """`--lr` under args and `lr` in the space would both be given."""
    for key in map(str, space):
        section, *names = path_of(key)
        if section == "args" and (written := f"--{names[-1]}") in args:
            message = f"is written {written} under args, and would be given twice"
            yield Issue(("space", key), message, f"args: {names[-1]}")


def _objective(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    metric = mapping_of(section, "objective").get("metric")
    if section.get("method") == "batch_size":  # which has a metric of its own
        return
    is_trainer = isinstance(metric, str) and spec.get("entrypoint") is None
    if is_trainer and (problem := unreported(str(metric), mapping_of(spec, "args"))):
        yield Issue(("objective", "metric"), *problem)


def _stopping(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Early stopping needs reports to compare; promotion an end to train to, and checkpoints to go
    on from.
    """
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
        message = f"{metric} is reported once, at the end: nothing is left to stop"
        yield Issue(
            ("early_stopping", "max") if last == 1 else at,
            message,
            "more epochs, or no early stopping",
        )
    elif isinstance(grace, int) and isinstance(whole, int) and grace >= whole > 0:
        message = f"no trial is compared before report {grace}, and a whole one makes {whole}"
        yield Issue(
            ("early_stopping", "grace") if "grace" in stopping else at,
            message,
            f"less than {whole}",
        )
    if stopping.get("promote") == "always":
        yield from _promotion(whole, spec)


def _promotion(whole: Any, spec: Mapping[str, Any]) -> Iterator[Issue]:
    at = ("early_stopping", "promote")
    if whole is None:
        hint = (
            "early_stopping.max: the reports of a trial that trains to its end, such as its epochs"
        )
        yield Issue(
            at, "brings trials back until they are whole, and it is not known when they are", hint
        )
    args = mapping_of(spec, "args")
    for name in ("no-resume", "eval-only"):
        if spec.get("entrypoint") is None and args.get(name) is True:
            message = f"goes on from checkpoints, and --{name} makes each run begin anew"
            yield Issue(at, message, f"leave out args.{name}")


def _reports(section: Mapping[str, Any], spec: Mapping[str, Any]) -> int | None:
    """How often the shared trainer reports the objective; None for other programs, and where it is
    not known.
    """
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
    each = quantity_of(limits.get("max_cost"), parse_money)
    if usd is not None and each is not None and each > usd:
        message = (
            f"{usd:.2f} USD for all trials are less than limits.max_cost allows one: {each:.2f} USD"
        )
        yield Issue(("budget", "max_cost"), message, "raise the budget, or lower limits.max_cost")
    seconds = quantity_of(budget.get("max_time"), parse_duration)
    if seconds is not None and seconds < SHORTEST_SECONDS:
        yield Issue(
            ("budget", "max_time"),
            f"no trial is started for less than {SHORTEST_SECONDS} s",
            "raise it",
        )
    if usd is not None:
        for key in map(str, mapping_of(section, "space")):
            if path_of(key)[0] == "resources":
                message = "changes what a trial may cost, so that a budget in money cannot be held"
                hint = "a sweep for each kind of machine, or budget.max_time"
                yield Issue(("space", key), message, hint)


def _engine(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    engine = section.get("engine")
    space = mapping_of(section, "space")
    promotes = mapping_of(section, "early_stopping").get("promote") == "always"
    if engine == "native":
        for key in map(str, space):
            if path_of(key)[0] != "args":
                message = "is no argument, and the cloud's own engine varies arguments alone"
                yield Issue(("space", key), message, "engine: portable varies it")
    if engine in ("native", "ray") and promotes:
        who = "Ray's ASHA" if engine == "ray" else "the cloud's own engine"
        message = f"brings trials back, and {who} only ends them"
        yield Issue(("early_stopping", "promote"), message, "engine: portable does both")
    if engine == "ray":
        yield from _on_ray(space, spec)


def _lent_by_ray(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """What Ray lends a trial must be what a trial uses."""
    lent = mapping_of(section, "ray")
    if lent and section.get("engine") != "ray":
        yield Issue(("ray",), "plays no part without Ray", "engine: ray, or leave it out")
    gpus = lent.get("gpus")
    wanted = mapping_of(spec, "resources").get("gpus", 0)
    if not isinstance(gpus, int | float) or not isinstance(wanted, int):
        return
    if gpus > 1 and gpus != int(gpus):
        yield Issue(
            ("ray", "gpus"), f"Ray lends whole GPUs or a part of one, not {gpus:g}", "0.5, 1, 2"
        )
    elif gpus > 0 and max(1, gpus) != wanted:
        message = f"lends a trial {gpus:g} GPUs, and resources.gpus is {wanted}"
        yield Issue(("ray", "gpus"), message, f"resources: {{gpus: {max(1, int(gpus))}}}")


def _on_ray(space: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """What one worker of a Ray cluster cannot do."""
    nodes = mapping_of(spec, "resources").get("nodes")
    hint = "one node for each trial; engine: portable runs trials of several"
    if isinstance(nodes, int) and nodes > 1 and "resources.nodes" not in space:
        yield Issue(
            ("engine",),
            f"runs each trial on one node of its cluster, and resources.nodes is {nodes}",
            hint,
        )
    if "resources.nodes" in space:
        yield Issue(("space", "resources.nodes"), "is one for every trial of a Ray cluster", hint)
