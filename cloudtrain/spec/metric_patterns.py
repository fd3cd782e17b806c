"""Reads `metrics` of job.yaml: numbers that a script only prints, each found by a regular
expression.

The launcher runs the expressions on every line, in Python; SageMaker runs them in an engine of its
own. So they keep to what all engines have, and those that may take for ever on some line are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec.fields import FieldError, FieldErrors, expect

MAX_METRICS = 36
"""SageMaker takes 40 (AlgorithmSpecification.MetricDefinitions), of which the trainer has four."""
MAX_PATTERN = 480
"""SageMaker takes 500 characters (MetricDefinition.Regex), of which we need some for the rank."""
MANY = 20
"""A part that may be repeated more often than this is repeated without end."""

TRAINER_METRICS = ("loss", "val_loss", "val_accuracy", "samples_per_s")
"""What the shared trainer reports itself, and SageMaker is told of."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_EXAMPLE = "for example accuracy: 'Accuracy: ([0-9.]+)'"


def read_metrics(value: Any) -> Mapping[str, str]:
    """Names of metrics, each with the regular expression whose only group is the number."""
    patterns = expect(value, dict, "a mapping (name: regular expression)")
    issues: list[Issue] = []
    seen: dict[str, str] = {}
    for name, pattern in patterns.items():
        try:
            _check_name(name)
            _check_pattern(pattern)
            if pattern in seen:
                raise FieldError(
                    f"is the same expression as that of {seen[pattern]!r}", "keep one of them"
                )
            seen[pattern] = name
        except FieldErrors as error:
            issues += [
                Issue((name, *issue.path), issue.message, issue.hint) for issue in error.issues
            ]
    if len(patterns) > MAX_METRICS:
        issues.append(
            Issue((), f"has {len(patterns)} metrics, at most {MAX_METRICS} are looked for")
        )
    if issues:
        raise FieldErrors(issues)
    return {str(name): str(pattern) for name, pattern in patterns.items()}


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FieldError(
            "is not a valid name of a metric",
            "up to 64 letters, digits and _ . / -, a letter first",
        )


def _check_pattern(pattern: Any) -> None:
    text = expect(pattern, str, "a regular expression")
    if len(text) > MAX_PATTERN:
        raise FieldError(f"is {len(text)} characters long, at most {MAX_PATTERN} are taken")
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise FieldError(f"{text!r} is not a valid regular expression: {error}", _EXAMPLE) from None
    if groups != 1:
        count = "no group" if groups == 0 else f"{groups} groups"
        hint = "write (?:…) for the others" if groups else _EXAMPLE
        raise FieldError(
            f"{text!r} has {count}: the number is what is found in its one pair of brackets", hint
        )
    problem = next(_problems(text), None)
    if problem:
        raise FieldError(f"{text!r} {problem}", _EXAMPLE)


def _problems(text: str) -> Iterator[str]:
    parser: Any = import_module("re._parser")
    parsed = parser.parse(text)
    if parsed.state.flags & ~re.UNICODE.value:
        yield "sets flags, which not every engine takes"
    if parsed.state.groupdict:
        yield "names its group, which not every engine takes: write ( ) without a name"
    if parsed.getwidth()[0] == 0:
        yield "is found in every line, even an empty one"
    yield from _in_parts(parsed, inside_repeat=False)


def _in_parts(parsed: Any, *, inside_repeat: bool) -> Iterator[str]:
    """What is wrong with the parts of a parsed expression: pairs of operator and operand, as
    `re._parser` has them.
    """
    for operator, operand in parsed:
        check = _CHECKS.get(str(operator))
        if check is not None:
            yield from check(operand, inside_repeat)


def _repeat(operand: Any, inside_repeat: bool) -> Iterator[str]:
    _, most, repeated = operand
    endless = int(most) > MANY
    if endless and inside_repeat:
        yield "repeats what is repeated, which takes for ever on some lines"
    yield from _in_parts(repeated, inside_repeat=inside_repeat or endless)


def _branch(operand: Any, inside_repeat: bool) -> Iterator[str]:
    if inside_repeat:
        yield "repeats a choice (a|b), which takes for ever on some lines"
    for part in operand[1]:
        yield from _in_parts(part, inside_repeat=inside_repeat)


def _refused(what: str) -> Callable[[Any, bool], Iterator[str]]:
    def check(_operand: Any, _inside_repeat: bool) -> Iterator[str]:
        yield f"has {what}, which not every engine takes"

    return check


_CHECKS: Mapping[str, Callable[[Any, bool], Iterator[str]]] = {
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "SUBPATTERN": lambda operand, inside: _in_parts(operand[-1], inside_repeat=inside),
    "BRANCH": _branch,
    "POSSESSIVE_REPEAT": _refused("a possessive repeat"),
    "ATOMIC_GROUP": _refused("an atomic group"),
    "GROUPREF": _refused("a reference to a group"),
    "GROUPREF_EXISTS": _refused("a condition"),
    "ASSERT": _refused("a look-around"),
    "ASSERT_NOT": _refused("a look-around"),
}
