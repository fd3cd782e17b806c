"""Reads `sweep.space` of job.yaml: what each tuned setting may be, as texts such as
`loguniform(1e-4, 1e-1)`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloudtrain.issues import Issue, did_you_mean
from cloudtrain.spec.fields import FieldError, FieldErrors, expect
from cloudtrain.spec.yaml_document import kind_of, parse_scalar

Scalar = str | int | float | bool
"""A value of one setting."""

FORMS = "loguniform(1e-4, 1e-1), uniform(0, 1), int(8, 512), logint(8, 512), choice(16, 32, 64)"
MAX_SETTINGS = 30
"""SageMaker takes 30 hyperparameters in all ranges together (HyperParameterTuningJobConfig,
ParameterRanges).
"""
MAX_CHOICES = 30
"""SageMaker takes 30 values (CategoricalParameterRange.Values)."""

MAX_WHOLE = 10**18
MAX_REAL = 10**100
"""Limits of a range; samplers count in 64 bits, and take differences and logarithms."""

_CALL = re.compile(r"\s*([a-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,254}")


@dataclass(frozen=True, slots=True)
class Uniform:
    """Real numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False
    """Whether each factor of ten is as likely as any other, not each difference."""

    def text(self) -> str:
        """As job.yaml says it."""
        return f"{'log' * self.log}uniform({_number(self.low)}, {_number(self.high)})"

    def contains(self, value: Scalar) -> bool:
        """Whether a value is a number of this range."""
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Integers:
    """Whole numbers from low to high, both included."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    """Distance of neighbours; `high` is a whole number of steps above `low`."""

    @property
    def values(self) -> range:
        """All of them, in order."""
        return range(self.low, self.high + 1, self.step)

    @property
    def size(self) -> int:
        """How many they are, which `len` does not say of a range beyond 64 bits."""
        return (self.high - self.low) // self.step + 1

    def text(self) -> str:
        """As job.yaml says it."""
        step = f", {self.step}" if self.step > 1 else ""
        return f"{'log' * self.log}int({self.low}, {self.high}{step})"

    def contains(self, value: Scalar) -> bool:
        """Whether a value is one of these numbers."""
        return isinstance(value, int) and _is_number(value) and value in self.values


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values, in the order in which they are written."""

    values: tuple[Scalar, ...]

    def text(self) -> str:
        """As job.yaml says it."""
        return (
            f"choice({', '.join(json.dumps(value, ensure_ascii=False) for value in self.values)})"
        )

    def contains(self, value: Scalar) -> bool:
        """Whether a value is one of these; 1 and true are two values."""
        return any(type(value) is type(option) and value == option for option in self.values)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Dimension = Uniform | Integers | Choice
"""What one setting may be."""


def read_space(value: Any) -> Mapping[str, Dimension]:
    """Settings, each with what it may be. FieldErrors names everything that is wrong, each at its
    key.

    A list is a choice: `[16, 32]` is `choice(16, 32)`.
    """
    space = expect(value, dict, f"a mapping (setting: {FORMS})")
    issues: list[Issue] = []
    found: dict[str, Dimension] = {}
    for key, item in space.items():
        try:
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise FieldError(
                    "is not a valid name of a setting",
                    "an argument (lr), or a path (args.lr, env.SEED)",
                )
            found[key] = _read_dimension(item)
        except FieldErrors as error:
            issues += [replace(issue, path=(str(key), *issue.path)) for issue in error.issues]
    if not space:
        issues.append(
            Issue(
                (), "is empty: there is nothing to vary", "for example lr: loguniform(1e-4, 1e-1)"
            )
        )
    if len(space) > MAX_SETTINGS:
        issues.append(Issue((), f"varies {len(space)} settings, at most {MAX_SETTINGS} are taken"))
    if issues:
        raise FieldErrors(issues)
    return found


def read_points(value: Any) -> tuple[Mapping[str, Scalar], ...]:
    """Read points of a space: a list of mappings from settings to values. FieldErrors names every
    mistake.
    """
    points = expect(value, list, "a list of points, such as [{lr: 0.01}]")
    issues = []
    for at, point in enumerate(points):
        if not isinstance(point, dict) or not point:
            issues.append(
                Issue((at,), f"expected values of settings, got {kind_of(point)}", "{lr: 0.01}")
            )
            continue
        for key, item in point.items():
            if not isinstance(item, (str, int, float)) or (
                isinstance(item, float) and not math.isfinite(item)
            ):
                issues.append(
                    Issue((at, str(key)), f"expected one value, got {kind_of(item)}", "lr: 0.01")
                )
    if issues:
        raise FieldErrors(issues)
    return tuple({str(key): plain_value(item) for key, item in point.items()} for point in points)


def read_dimension(text: str) -> Dimension:
    """One of FORMS. FieldErrors where it is none."""
    return _read_dimension(text)


def _read_dimension(value: Any) -> Dimension:
    if isinstance(value, list):
        return _choice(value)
    if isinstance(value, dict):
        raise FieldError(
            "expected what it may be, got a mapping", "write a path in one line, such as args.lr: …"
        )
    if not isinstance(value, str):
        raise FieldError(
            f"expected what it may be, got {kind_of(value)}", f"write for example {FORMS}"
        )
    call = _CALL.fullmatch(value)
    if call is None:
        open_ = value.count("(") > value.count(")")
        raise FieldError(
            f"{value!r} {'is never closed' if open_ else 'says no range'}",
            f"write for example {FORMS}",
        )
    read = _FORMS.get(call[1])
    if read is None:
        raise FieldError(
            f"there is no {call[1]!r}{did_you_mean(call[1], _FORMS)}", f"write for example {FORMS}"
        )
    given = parse_scalar(f"[{call[2]}]")
    if not isinstance(given, list):
        raise FieldError(f"{value!r} cannot be read", f"write for example {FORMS}")
    return read(given)


def _choice(values: Sequence[Any]) -> Choice:
    if not values:
        raise FieldError("has no value to choose from")
    for at, value in enumerate(values):
        if not isinstance(value, (str, int, float)):
            raise FieldError(
                f"expected text, a number, true or false, got {kind_of(value)}", at=(at,)
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(f"{kind_of(value)} is no value that a program can be given", at=(at,))
    plain = [plain_value(value) for value in values]
    if len({json.dumps(value).strip('"') for value in plain}) < len(
        plain
    ):  # 1 and "1" arrive alike
        raise FieldError("has the same value twice", "keep one of them")
    if len(plain) > MAX_CHOICES:
        raise FieldError(
            f"has {len(plain)} values, at most {MAX_CHOICES} are taken",
            "int(low, high) has no such limit",
        )
    return Choice(tuple(plain))


def plain_value(value: Any) -> Scalar:
    """Return a number as its own type: those of a document remember their text."""
    if isinstance(value, bool):
        return value
    return (
        float(value)
        if isinstance(value, float)
        else int(value)
        if isinstance(value, int)
        else str(value)
    )


def _range(given: Sequence[Any], *, whole: bool, log: bool) -> tuple[float, float]:
    name = f"{'log' * log}{'int' if whole else 'uniform'}"
    if len(given) != 2:
        raise FieldError(f"{name} takes two numbers, the least and the most, got {len(given)}")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise FieldError(f"{name} takes {'whole ' * whole}numbers, got {kind_of(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(f"{name} takes finite numbers, got {kind_of(value)}")
        limit = MAX_WHOLE if whole else MAX_REAL
        if abs(value) > limit:
            raise FieldError(f"{name} takes numbers up to {limit:.0e}, got {kind_of(value)}")
    low, high = given
    if low > high:
        raise FieldError(f"{kind_of(low)} is more than {kind_of(high)}", "write the least first")
    if low == high:
        raise FieldError(
            f"has only one value, {kind_of(low)}", "set it under args, and leave it out here"
        )
    if log and low <= 0:
        raise FieldError(
            f"{name} begins at {kind_of(low)}, and there is no logarithm of that", "begin above 0"
        )
    return low, high


def _uniform(given: Sequence[Any]) -> Uniform:
    low, high = _range(given, whole=False, log=False)
    return Uniform(float(low), float(high))


def _loguniform(given: Sequence[Any]) -> Uniform:
    low, high = _range(given, whole=False, log=True)
    return Uniform(float(low), float(high), log=True)


def _int(given: Sequence[Any]) -> Integers:
    low, high = _range(given[:2], whole=True, log=False)
    if len(given) < 3:
        return Integers(int(low), int(high))
    step = given[2]
    if len(given) > 3 or isinstance(step, bool) or not isinstance(step, int):
        raise FieldError(
            "int takes the least, the most, and perhaps a step: whole numbers", "int(8, 512, 8)"
        )
    if not 1 <= step <= high - low:
        raise FieldError(f"the step {step} must be from 1 to {high - low}", "int(8, 512, 8)")
    return Integers(int(low), int(low) + (int(high) - int(low)) // step * step, step=int(step))


def _logint(given: Sequence[Any]) -> Integers:
    low, high = _range(given, whole=True, log=True)
    return Integers(int(low), int(high), log=True)


_FORMS: Mapping[str, Callable[[Sequence[Any]], Dimension]] = {
    "uniform": _uniform,
    "loguniform": _loguniform,
    "int": _int,
    "logint": _logint,
    "choice": _choice,
}


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def override_of(key: str, value: Scalar) -> str:
    """The override `args.lr=0.01` that gives a setting this value: a key without a section is an
    argument.
    """
    from cloudtrain.spec.model import JobSpec

    first = key.partition(".")[0]
    path = key if "." in key and first in JobSpec.model_fields else f"args.{key}"
    return f"{path}={json.dumps(value, ensure_ascii=False)}"
