"""Which settings of a job a sweep may vary, and whether the job is a valid one with their values.

All of values as YAML gave them, so that it works beside other mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudtrain.declaration import is_provider
from cloudtrain.issues import Issue, Keys, did_you_mean
from cloudtrain.spec.fields import FieldErrors
from cloudtrain.spec.search_space import (
    Choice,
    Dimension,
    Scalar,
    override_of,
    read_dimension,
    read_space,
)

VARIED = ("args", "env", "inputs", "resources", "checkpoints", "launch")
"""The sections whose settings a trial may have of its own."""

_FIXED: Mapping[str, tuple[str, str]] = {
    "name": (
        "is the name of the sweep, and trials are numbered",
        "vary an argument, or leave it out",
    ),
    "entrypoint": (
        "is one program for all trials",
        "one sweep for each program, or an argument that chooses",
    ),
    "source": ("is packed once, for all trials", "one sweep for each source"),
    "image": ("is chosen once, for all trials", "one sweep for each image"),
    "dependencies": ("are installed alike for all trials", "one sweep for each set of packages"),
    "limits": (
        "are what one trial may take, and the budget counts on them",
        "set them outside of the sweep",
    ),
    "metrics": ("are looked for alike in all trials", "name all of them under metrics"),
    "keep": ("is the same for all trials", "name all patterns under keep"),
    "tags": ("are the same for all trials", "leave it out"),
    "secrets": (
        "are the same for all trials, and no search may read them",
        "vary a setting that is none",
    ),
    "sweep": ("is the search itself", "vary an argument"),
}
"""Why the settings of the other sections are the same for all trials, and what to do instead."""


def setting_issues(space: Mapping[str, Any]) -> Iterator[Issue]:
    """Settings that no trial may have of its own, or that are named twice. Each at its place below
    `sweep`.
    """
    seen: dict[Keys, str] = {}
    for key in map(str, space):
        path = path_of(key)
        if problem := _problem(key, path):
            yield Issue(("space", key), *problem)
            continue
        for other, name in seen.items():
            if other == path:
                yield Issue(("space", key), f"is the same setting as {name}", "keep one of them")
            elif path[: len(other)] == other or other[: len(path)] == path:
                yield Issue(
                    ("space", key), f"is a part of the same setting as {name}", "keep one of them"
                )
        seen[path] = key


def path_of(key: str) -> Keys:
    """The field that a key of the space sets: ("args", "lr") for `lr` and for `args.lr`."""
    return tuple(override_of(key, 0).partition("=")[0].split("."))


def arguments_of(space: Mapping[str, Dimension]) -> dict[str, Dimension]:
    """The settings of a space that are arguments, by their names."""
    paths = {path_of(key): dimension for key, dimension in space.items()}
    return {str(path[-1]): dimension for path, dimension in paths.items() if path[0] == "args"}


def _problem(key: str, path: Keys) -> tuple[str, str] | None:
    from cloudtrain.spec.model import JobSpec

    first, *rest = key.split(".")
    if not all((first, *rest)):
        return f"{key!r} has an empty part", "an argument (lr), or a path (args.lr, env.SEED)"
    if not rest:
        return None
    if first in _FIXED:
        return _FIXED[first]
    if first in VARIED:
        if first == "args" and len(rest) > 1:
            return "names a part of an argument, and arguments have none", f"args.{rest[0]} is one"
        return (
            ("is a folder of its own for each trial", "leave it out")
            if path == ("checkpoints", "uri")
            else None
        )
    if is_provider(first):
        return (
            "is how the account is used, the same for all trials",
            f"set it in the section {first}",
        )
    near = did_you_mean(first, JobSpec.model_fields)
    return f"there is no section {first!r}{near}", "an argument (lr), or a path (args.lr, env.SEED)"


def trial_issues(
    spec: Mapping[str, Any], issues_of: Callable[[str], list[Issue]]
) -> Iterator[Issue]:
    """Values with which the job of a trial would be refused: both ends of a range, each of a
    choice.

    `issues_of`: what is wrong with the job without its sweep, with an override laid over it; "" for
    none.
    """
    space = spec["sweep"].get("space")
    if not isinstance(space, dict) or isinstance(spec.get("args"), list):
        return
    before = set(issues_of(""))
    for key, written in space.items():
        dimension = dimension_of(written)
        if dimension is None or any(setting_issues({str(key): written})):
            continue
        found = {
            value: [issue for issue in issues_of(override_of(key, value)) if issue not in before]
            for value in samples(dimension)
        }
        yield from issues_of_values(key, written, found)


def samples(dimension: Dimension) -> tuple[Scalar, ...]:
    """Both ends of a range, or all values of a choice."""
    return dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)


def issues_of_values(
    key: str, written: Any, found: Mapping[Scalar, list[Issue]]
) -> Iterator[Issue]:
    """What is wrong with values of a setting, at the setting, or at the value itself where a list
    is written.

    What is wrong with all of them alike is about the setting, and said once.
    """
    shared = (
        set.intersection(*(set(issues) for issues in found.values())) if len(found) > 1 else set()
    )
    path = path_of(key)
    for issue in dict.fromkeys(
        issue for issues in found.values() for issue in issues if issue in shared
    ):
        yield Issue(
            ("sweep", "space", key), _about(issue, path), issue.hint, severity=issue.severity
        )
    for at, (value, issues) in enumerate(found.items()):
        below: Keys = (at,) if isinstance(written, list) else ()
        for issue in issues:
            if issue not in shared:
                text = (
                    f"{json.dumps(value, ensure_ascii=False)} is no value of it:"
                    f" {_about(issue, path)}"
                )
                yield Issue(
                    ("sweep", "space", key, *below), text, issue.hint, severity=issue.severity
                )


def _about(issue: Issue, path: Keys) -> str:
    """The message, with the field where it is about another."""
    return (
        issue.message
        if issue.path[: len(path)] == path
        else f"{issue.field}: {issue.message}".removeprefix(": ")
    )


def dimension_of(value: Any) -> Dimension | None:
    """What a setting may be; None where that cannot be read, which is reported elsewhere."""
    try:
        if isinstance(value, list):
            return read_space({"x": value})["x"]
        return read_dimension(value) if isinstance(value, str) else None
    except FieldErrors:
        return None
