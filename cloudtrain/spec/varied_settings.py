"""Settings that a sweep may vary, and the metrics of the shared trainer that it may improve.

Values are raw, so that these checks run together with others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from cloudtrain.declaration import is_provider
from cloudtrain.errors import Issue, Keys, did_you_mean
from cloudtrain.spec.fields import FieldErrors
from cloudtrain.spec.search_space import Choice, Dimension, Scalar, read_dimension, read_space

VARIED = ("args", "env", "inputs", "resources", "checkpoints", "launch")
"""Sections whose settings may differ between trials."""

FIXED = (
    "name",
    "entrypoint",
    "launcher",
    "source",
    "image",
    "dependencies",
    "setup",
    "limits",
    "metrics",
    "keep",
    "tags",
    "secrets",
    "sweep",
)
"""Sections that all trials share."""

SECTIONS = (*VARIED, *FIXED)
"""All fields of a job, without sections of providers."""

REPORTED: Mapping[str, str] = {
    "loss": "minimize",
    "val_loss": "minimize",
    "val_accuracy": "maximize",
    "samples_per_s": "maximize",
}
"""Metrics that the shared trainer reports after an epoch, with the better direction."""

EVERY_EPOCH = ("loss", "samples_per_s")
"""Metrics that it reports without an evaluation, too."""

LENGTHS = ("epochs", "eval-every")
"""Options of the shared trainer that set the number of evaluations."""
_ENDS_EARLY = ("max-steps", "patience", "eval-every-steps")
"""Options that make the number of evaluations differ from the epochs."""


def override_of(key: str, value: Scalar) -> str:
    """Return the override `args.lr=0.01` for a setting. Without a section it is an argument."""
    first = key.partition(".")[0]
    if "." in key and first in SECTIONS:
        path = key
    else:
        path = f"args.{key}"

    return f"{path}={json.dumps(value, ensure_ascii=False)}"


def setting_issues(space: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield settings that trials share, or that are named twice, below `sweep`."""
    keys_by_path: dict[Keys, str] = {}
    for key in map(str, space):
        path = path_of(key)
        if problem := _problem(key, path):
            yield Issue(("space", key), *problem)
            continue

        for other_path, name in keys_by_path.items():
            if other_path == path:
                yield Issue(("space", key), f"repeats the setting {name}", "keep one of them")
            elif path[: len(other_path)] == other_path or other_path[: len(path)] == path:
                yield Issue(("space", key), f"overlaps with the setting {name}", "keep one of them")

        keys_by_path[path] = key


def path_of(key: str) -> Keys:
    """Return the field of a key of the space: ("args", "lr") for `lr` and `args.lr`."""
    return tuple(override_of(key, 0).partition("=")[0].split("."))


def arguments_of(space: Mapping[str, Dimension]) -> dict[str, Dimension]:
    """Return the settings of a space that are arguments, by name."""
    paths = {path_of(key): dimension for key, dimension in space.items()}
    return {str(path[-1]): dimension for path, dimension in paths.items() if path[0] == "args"}


def _problem(key: str, path: Keys) -> tuple[str, str] | None:
    first, *remainder = key.split(".")
    if not all((first, *remainder)):
        return f"{key!r} has an empty part", "write an argument (lr) or a path (args.lr, env.SEED)"
    if not remainder:
        return None

    if first in VARIED:
        if first == "args" and len(remainder) > 1:
            return "names a part of an argument, which does not exist", f"write args.{remainder[0]}"
        if path == ("checkpoints", "uri"):
            return "differs for each trial already", "remove it"

        return None

    if first in FIXED or is_provider(first):
        return "is the same for all trials", f"vary a setting of {', '.join(VARIED)}"

    suggestion = did_you_mean(first, SECTIONS)
    return (
        f"unknown section {first!r}{suggestion}",
        "write an argument (lr) or a path (args.lr, env.SEED)",
    )


def trial_issues(
    spec: Mapping[str, Any], issues_of: Callable[[str], list[Issue]]
) -> Iterator[Issue]:
    """Yield values that make the job of a trial invalid: range limits and choices.

    `issues_of`: mistakes of the job without its sweep, with an override; "" for none.
    """
    space = spec["sweep"].get("space")
    if not isinstance(space, dict) or isinstance(spec.get("args"), list):
        return

    before = set(issues_of(""))
    for key, written in space.items():
        dimension = dimension_of(written)
        if dimension is None or any(setting_issues({str(key): written})):
            continue

        issues_by_value = {}
        for value in samples(dimension):
            issues = issues_of(override_of(key, value))
            issues_by_value[value] = [issue for issue in issues if issue not in before]

        yield from issues_of_values(key, written, issues_by_value)


def samples(dimension: Dimension) -> tuple[Scalar, ...]:
    """Return both ends of a range, or all values of a choice."""
    if isinstance(dimension, Choice):
        return dimension.values

    return (dimension.low, dimension.high)


def issues_of_values(
    key: str, written: Any, issues_by_value: Mapping[Scalar, list[Issue]]
) -> Iterator[Issue]:
    """Yield the issues of values, at the setting or at the value in a list.

    An issue that all values share is reported once, at the setting.
    """
    shared: set[Issue] = set()
    if len(issues_by_value) > 1:
        shared = set.intersection(*(set(issues) for issues in issues_by_value.values()))

    path = path_of(key)
    all_issues = dict.fromkeys(chain.from_iterable(issues_by_value.values()))
    for issue in all_issues:
        if issue in shared:
            message = _message_about(issue, path)
            yield Issue(("sweep", "space", key), message, issue.hint, severity=issue.severity)

    for at, (value, issues) in enumerate(issues_by_value.items()):
        below: Keys = (at,) if isinstance(written, list) else ()
        for issue in issues:
            if issue in shared:
                continue

            word = json.dumps(value, ensure_ascii=False)
            message = f"{word} is not a valid value: {_message_about(issue, path)}"
            keys = ("sweep", "space", key, *below)
            yield Issue(keys, message, issue.hint, severity=issue.severity)


def _message_about(issue: Issue, path: Keys) -> str:
    """Return the message, with the name of its field if it is another one."""
    if issue.path[: len(path)] == path:
        return issue.message
    return f"{issue.field}: {issue.message}".removeprefix(": ")


def dimension_of(value: Any) -> Dimension | None:
    """Return the possible values of a setting; None if invalid, reported elsewhere."""
    try:
        if isinstance(value, list):
            return read_space({"x": value})["x"]
        if not isinstance(value, str):
            return None

        return read_dimension(value)
    except FieldErrors:
        return None


def is_own_task(args: Mapping[str, Any]) -> bool:
    """Return whether the trainer runs a model or task of the user, with its own metrics."""
    return any(":" in str(args.get(name, "")) for name in ("task", "model"))


def unreported(metric: str, args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return why the shared trainer never reports a metric, with a hint, or None."""
    if metric in REPORTED or (is_own_task(args) and metric.startswith("val_")):
        return None

    suffix = ""
    if is_own_task(args):
        suffix = ", and val_… for each measure of your task"

    suggestion = did_you_mean(metric, REPORTED)
    return (
        f"the shared trainer does not report {metric!r}{suggestion}",
        f"it reports {', '.join(REPORTED)}{suffix}",
    )


def report_count(
    metric: str, args: Mapping[str, Any], space: Mapping[str, Dimension]
) -> int | None:
    """Return how often the trainer reports a metric in the longest trial; None: unknown.

    `args`: arguments by name. `space`: varied arguments by name; they replace `args`.
    """
    if any(name in args or name in space for name in _ENDS_EARLY):
        return None

    epochs = max(_values("epochs", args, space), default=None)
    every = [1]

    if metric not in EVERY_EPOCH and ("eval-every" in args or "eval-every" in space):
        every = _values("eval-every", args, space)

    if epochs is None or not every:
        return None

    return -(-epochs // min(every))


def _values(name: str, args: Mapping[str, Any], space: Mapping[str, Dimension]) -> list[int]:
    """Return the positive whole numbers of an argument; empty if it may be anything else."""
    dimension = space.get(name)
    if dimension is None:
        candidates: tuple[Any, ...] = (args.get(name),)
    elif isinstance(dimension, Choice):
        candidates = dimension.values
    else:
        candidates = (dimension.low, dimension.high)

    numbers = []
    for value in candidates:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            return []

        numbers.append(int(value))

    return numbers
