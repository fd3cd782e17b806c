"""Reader of `metrics`: regular expressions for numbers that a script prints.

Python runs them in the launcher, and SageMaker in its own engine. So only common syntax is allowed,
and expressions that may run forever on some line are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from cloudtrain.errors import Issue
from cloudtrain.spec.fields import FieldError, FieldErrors, expect

MAX_METRICS = 36
"""SageMaker's limit is 40 (AlgorithmSpecification.MetricDefinitions); the trainer uses four."""
MAX_PATTERN = 480
"""SageMaker's limit is 500 characters (MetricDefinition.Regex); the rank needs some."""
MANY = 20
"""A repeat above this count is treated as endless."""

TRAINER_METRICS = ("loss", "val_loss", "val_accuracy", "samples_per_s")
"""Metrics of the shared trainer, which SageMaker receives too."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_EXAMPLE = "for example accuracy: 'Accuracy: ([0-9.]+)'"


def read_metrics(value: Any) -> Mapping[str, str]:
    """Read metrics: name -> regular expression with one group, the number."""
    patterns = expect(value, dict, "a mapping (name: regular expression)")
    issues: list[Issue] = []
    names: dict[str, str] = {}
    for name, pattern in patterns.items():
        try:
            _check_name(name)
            _check_pattern(pattern)
            if pattern in names:
                raise FieldError(
                    f"repeats the expression of {names[pattern]!r}", "keep one of them"
                )
            names[pattern] = name
        except FieldErrors as error:
            issues += [
                Issue((name, *issue.path), issue.message, issue.hint) for issue in error.issues
            ]
    if len(patterns) > MAX_METRICS:
        issues.append(Issue((), f"has {len(patterns)} metrics; the limit is {MAX_METRICS}"))
    if issues:
        raise FieldErrors(issues)
    return {str(name): str(pattern) for name, pattern in patterns.items()}


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FieldError(
            "is not a valid metric name",
            "up to 64 letters, digits and _ . / -, a letter first",
        )


def _check_pattern(pattern: Any) -> None:
    text = expect(pattern, str, "a regular expression")
    if len(text) > MAX_PATTERN:
        raise FieldError(f"has {len(text)} characters; the limit is {MAX_PATTERN}")
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise FieldError(f"{text!r} is not a valid regular expression: {error}", _EXAMPLE) from None
    if groups != 1:
        count = "no group" if groups == 0 else f"{groups} groups"
        hint = "write (?:…) for the others" if groups else _EXAMPLE
        raise FieldError(
            f"{text!r} has {count}: it needs exactly one capture group, around the number", hint
        )
    problem = next(_problems(text), None)
    if problem:
        raise FieldError(f"{text!r} {problem}", _EXAMPLE)


def _problems(text: str) -> Iterator[str]:
    parser: Any = import_module("re._parser")
    parsed = parser.parse(text)
    if parsed.state.flags & ~re.UNICODE.value:
        yield "sets flags, which some engines do not support"
    if parsed.state.groupdict:
        yield "names its group, which some engines do not support: write ( ) without a name"
    if parsed.getwidth()[0] == 0:
        yield "matches every line, even an empty one"
    yield from _in_parts(parsed, inside_repeat=False)


def _in_parts(parsed: Any, *, inside_repeat: bool) -> Iterator[str]:
    """Yield problems in the parts of a parsed expression from `re._parser`."""
    for operator, operand in parsed:
        name = str(operator)
        if name in _REFUSED:
            yield f"has {_REFUSED[name]}, which some engines do not support"

        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, repeated = operand
            is_endless = int(most) > MANY
            if is_endless and inside_repeat:
                yield "has a repeat inside a repeat, which may run forever on some lines"
            yield from _in_parts(repeated, inside_repeat=inside_repeat or is_endless)

        elif name == "SUBPATTERN":
            yield from _in_parts(operand[-1], inside_repeat=inside_repeat)

        elif name == "BRANCH":
            if inside_repeat:
                yield "repeats a choice (a|b), which may run forever on some lines"
            for part in operand[1]:
                yield from _in_parts(part, inside_repeat=inside_repeat)


_REFUSED = {
    "POSSESSIVE_REPEAT": "a possessive repeat",
    "ATOMIC_GROUP": "an atomic group",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition",
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
}
