"""What in a `sweep` section is right each by itself, but impossible together. Of values as YAML gave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec.fields import FieldErrors
from cloudtrain.spec.search_space import Choice, Dimension, Uniform, read_dimension, read_space

SAMPLERS = {
    "grid": (),
    "random": ("random", "qmc"),
    "bayesian": ("tpe", "gp"),
    "asha": ("random", "qmc", "tpe"),
}
"""The samplers of each method; the first is the default."""


def contradictions(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Each at its place below `sweep`."""
    method = section.get("method", "bayesian")
    space = section.get("space")
    if method == "grid":
        yield from _grid(space if isinstance(space, dict) else {})
    elif isinstance(method, str) and method in SAMPLERS and section.get("trials") is None:
        yield Issue(("trials",), "is missing: how many trials are wanted", "trials: 20")
    sampler = section.get("sampler")
    if isinstance(sampler, str) and method in SAMPLERS and sampler not in SAMPLERS[method]:
        known = " or ".join(SAMPLERS[method])
        hint = f"{method} takes {known}" if known else "a grid has no choice: leave it out"
        yield Issue(("sampler",), f"is not for the method {method}: {sampler}", hint)
    if isinstance(space, dict) and isinstance(spec.get("args"), list):
        names = [str(key) for key in space if "." not in str(key)]
        if names:
            hint = "write args as a mapping (lr: 0.1)"
            yield Issue(("space", names[0]), "sets an argument by its name, and args is a list, verbatim", hint)


def _grid(space: Mapping[str, Any]) -> Iterator[Issue]:
    for key, value in space.items():
        dimension = _dimension(value)
        if isinstance(dimension, Uniform):
            message = "has no end of values, and a grid takes each of them"
            yield Issue(("space", key), message, "choice(…) names those to try; method: random draws some")


def _dimension(value: Any) -> Dimension | None:
    """What a setting may be; None where that cannot be read, which is reported elsewhere."""
    try:
        if isinstance(value, list):
            found = read_space({"x": value})["x"]
            return found if isinstance(found, Choice) else None
        return read_dimension(value) if isinstance(value, str) else None
    except FieldErrors:
        return None
