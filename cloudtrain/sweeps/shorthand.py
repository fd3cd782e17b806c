"""Search from the command line, `--set args.lr=1e-4,1e-3`, without a section in job.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.spec.batch_sizes import METRIC
from cloudtrain.spec.objective import REPORTED
from cloudtrain.spec.varied_settings import VARIED
from cloudtrain.spec.yaml_document import parse_scalar

_RANGE = re.compile(r"\s*[A-Za-z_]+\s*\(.*\)\s*", re.DOTALL)
DEFAULT_METRIC = "val_accuracy"
"""Metric that all built-in tasks of the shared trainer report."""
MOST_SAMPLES = 65536
"""Default upper bound of a search for a batch size."""


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split overrides into the `space` of a sweep and ordinary overrides.

    `args.lr=1e-4,1e-3` is a choice, `args.lr=loguniform(1e-4, 1e-1)` a range. Text in quotes is
    one value, and so is a list in brackets. Overrides of the section, such as `sweep.space.lr=…`,
    are ordinary ones.
    """
    space: dict[str, Any] = {}
    ordinary: list[str] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        key = path.strip()
        values = _several(text) if equals and key.partition(".")[0] in VARIED else None
        if values is None:
            ordinary.append(override)
        else:
            space[key] = values
    return space, tuple(ordinary)


def _several(text: str) -> str | list[Any] | None:
    """Return the dimension of a setting; None for one value."""
    if _RANGE.fullmatch(text):
        return text.strip()
    if "," not in text or text.strip()[:1] in ("[", "{", "'", '"') or "(" in text:
        return None
    values = parse_scalar(f"[{text}]")
    return values if isinstance(values, list) and len(values) > 1 else None


def sweep_values(
    space: Mapping[str, Any], *, trials: int | None = None, objective: str = ""
) -> dict[str, Any]:
    """Return a section `sweep` over a space: a grid if all settings are lists without `trials`.

    `objective`: `val_accuracy:maximize`; a metric of the shared trainer needs no goal. Raise
    UsageError if it is invalid.
    """
    is_grid = trials is None and all(
        isinstance(dimension, list) or "choice" in dimension for dimension in space.values()
    )
    method = (
        {"method": "grid"}
        if is_grid
        else {"method": "bayesian", "trials": 20 if trials is None else trials}
    )
    return {"objective": read_objective(objective), "space": dict(space), **method}


def batch_size_values(
    space: Mapping[str, Any], spec: Mapping[str, Any], *, objective: str = ""
) -> dict[str, Any]:
    """Return a section `sweep` that searches for a batch size.

    `space`: settings of --set; if empty, the batch-size argument of the job from one sample per
    process. `spec`: the job as plain YAML. Raise UsageError if the argument is unknown.
    """
    if not space:
        args = spec.get("args")
        names = [str(name) for name in args] if isinstance(args, dict) else []
        named = [name for name in names if name.replace("_", "-") == "batch-size"]
        if spec.get("entrypoint") is None:
            named = ["batch-size"]
        if not named:
            hint = "--set 'args.batch_size=int(1, 4096)' names it, with its range"
            raise UsageError("it is not known which argument is the batch size", hint=hint)
        space = {f"args.{named[0]}": f"int({_least_batch(spec)}, {MOST_SAMPLES})"}
    read = read_objective(objective or f"{METRIC}:maximize")
    return {"objective": read, "space": dict(space), "method": "batch_size"}


def _least_batch(spec: Mapping[str, Any]) -> int:
    """Return one sample for each process and accumulation step of the job."""
    product = 1
    for section, name in (
        ("resources", "nodes"),
        ("resources", "processes"),
        ("args", "accumulate"),
    ):
        values = spec.get(section)
        value = values.get(name) if isinstance(values, dict) else None
        product *= value if isinstance(value, int) and 0 < value <= MOST_SAMPLES else 1
    return min(product, MOST_SAMPLES // 2)


def read_objective(text: str) -> dict[str, str]:
    """Return `{metric, goal}` of a text such as `val_accuracy:maximize`.

    The default is the accuracy of the shared trainer. Raise UsageError for another metric without a
    goal, or an unknown goal.
    """
    if ":" in text:
        metric, _, goal = text.rpartition(":")
    else:
        metric = text or DEFAULT_METRIC
        goal = ""
    goal = goal or REPORTED.get(metric, "")
    if not metric or goal not in ("minimize", "maximize"):
        message = f"{text!r} does not say whether less or more of it is better"
        raise UsageError(message, hint="--objective val_accuracy:maximize, or val_loss:minimize")
    return {"metric": metric, "goal": goal}
