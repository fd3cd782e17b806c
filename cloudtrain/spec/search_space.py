"""Reader of `sweep.space`: ranges and choices such as `loguniform(1e-4, 1e-1)`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloudtrain.errors import Issue, did_you_mean
from cloudtrain.spec.fields import FieldError, FieldErrors, expect
from cloudtrain.spec.yaml_document import kind_of, parse_scalar

Scalar = str | int | float | bool
"""Value of a setting."""

FORMS = (
    "loguniform(1e-4, 1e-1), uniform(0, 1), normal(0, 0.1), lognormal(-7, 1), int(8, 512),"
    " logint(8, 512), choice(16, 32, 64)"
)
MAX_SETTINGS = 30
"""SageMaker's limit (HyperParameterTuningJobConfig, ParameterRanges)."""
MAX_CHOICES = 30
"""SageMaker's limit (CategoricalParameterRange.Values)."""

MAX_WHOLE = 10**18
MAX_REAL = 10**100
"""Limits of a range. Samplers use 64 bits, differences and logarithms."""

_CALL = re.compile(r"\s*([a-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_KEY = r"[A-Za-z_][A-Za-z0-9_./-]{0,254}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Real numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False
    """True if values are uniform on a log scale."""

    def text(self) -> str:
        """Return the form in job.yaml."""
        return f"{'log' * self.log}uniform({_number(self.low)}, {_number(self.high)})"

    def contains(self, value: Scalar) -> bool:
        """Return whether a value is in this range."""
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Normal:
    """Real numbers around a mean."""

    mean: float
    deviation: float
    log: bool = False
    """True if mean and deviation describe the logarithm."""

    @property
    def low(self) -> float:
        """Three deviations below the mean: one value of 740 is less."""
        return self._at(-3)

    @property
    def high(self) -> float:
        """Three deviations above the mean: one value of 740 is more."""
        return self._at(3)

    def _at(self, deviations: float) -> float:
        value = self.mean + deviations * self.deviation
        if not self.log:
            return value

        return math.exp(value)

    def value_at(self, part: float) -> float:
        """Return the value below which this part is, from 0 to 1, of all but one in 10^9."""
        from statistics import NormalDist  # its import takes as long as a small plan

        return self._at(NormalDist().inv_cdf(min(max(part, 1e-9), 1 - 1e-9)))

    def part_below(self, value: float) -> float:
        """Return the part of the distribution below a value, from 0 to 1."""
        if self.log:
            plain = math.log(value)
        else:
            plain = value

        return math.erfc((self.mean - plain) / self.deviation / math.sqrt(2)) / 2

    def text(self) -> str:
        """Return the form in job.yaml."""
        return f"{'log' * self.log}normal({_number(self.mean)}, {_number(self.deviation)})"

    def contains(self, value: Scalar) -> bool:
        """Return whether a value is possible."""
        return _is_number(value) and (value > 0 or not self.log)  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Integers:
    """Whole numbers from low to high, both included."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    """Distance of neighbours. `high` is a whole number of steps above `low`."""

    @property
    def values(self) -> range:
        """All values in order."""
        return range(self.low, self.high + 1, self.step)

    @property
    def size(self) -> int:
        """Number of values. `len` fails for a range beyond 64 bits."""
        return (self.high - self.low) // self.step + 1

    def text(self) -> str:
        """Return the form in job.yaml."""
        step = ""
        if self.step > 1:
            step = f", {self.step}"

        return f"{'log' * self.log}int({self.low}, {self.high}{step})"

    def contains(self, value: Scalar) -> bool:
        """Return whether a value is one of these numbers."""
        return isinstance(value, int) and _is_number(value) and value in self.values


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, in their written order."""

    values: tuple[Scalar, ...]

    def text(self) -> str:
        """Return the form in job.yaml."""
        words = (json.dumps(value, ensure_ascii=False) for value in self.values)
        return f"choice({', '.join(words)})"

    def contains(self, value: Scalar) -> bool:
        """Return whether a value is one of these. 1 and true are different."""
        return any(type(value) is type(option) and value == option for option in self.values)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Dimension = Uniform | Normal | Integers | Choice
"""Possible values of a setting."""


def points_of(space: Mapping[str, Dimension]) -> int | None:
    """Return the number of points of a space; None if it contains a real range."""
    count = 1
    for dimension in space.values():
        if isinstance(dimension, (Uniform, Normal)):
            return None
        if isinstance(dimension, Choice):
            count *= len(dimension.values)
        else:
            count *= dimension.size

    return count


def read_space(value: Any) -> Mapping[str, Dimension]:
    """Read settings with their possible values. Raise FieldErrors with all mistakes.

    A list is a choice: `[16, 32]` means `choice(16, 32)`.
    """
    space = expect(value, dict, f"a mapping (setting: {FORMS})")
    issues: list[Issue] = []
    dimensions: dict[str, Dimension] = {}

    for key, item in space.items():
        try:
            if not isinstance(key, str) or not re.fullmatch(_KEY, key):
                raise FieldError(
                    "is not a valid setting name",
                    "write an argument (lr) or a path (args.lr, env.SEED)",
                )

            dimensions[key] = read_dimension(item)
        except FieldErrors as error:
            issues += [replace(issue, path=(str(key), *issue.path)) for issue in error.issues]

    if not space:
        hint = "add a setting, for example lr: loguniform(1e-4, 1e-1)"
        issues.append(Issue((), "is empty", hint))

    if len(space) > MAX_SETTINGS:
        issues.append(Issue((), f"varies {len(space)} settings; the limit is {MAX_SETTINGS}"))
    if issues:
        raise FieldErrors(issues)

    return dimensions


def read_points(value: Any) -> tuple[Mapping[str, Scalar], ...]:
    """Read points: a list of mappings from settings to values. Raise all mistakes."""
    points = expect(value, list, "a list of points, such as [{lr: 0.01}]")
    issues = []
    for at, point in enumerate(points):
        if not isinstance(point, dict) or not point:
            message = f"expected values of settings, got {kind_of(point)}"
            issues.append(Issue((at,), message, "{lr: 0.01}"))
            continue

        for key, item in point.items():
            is_value = isinstance(item, (str, int, float))
            if not is_value or (isinstance(item, float) and not math.isfinite(item)):
                message = f"expected one value, got {kind_of(item)}"
                issues.append(Issue((at, str(key)), message, "lr: 0.01"))

    if issues:
        raise FieldErrors(issues)

    read = []
    for point in points:
        read.append({str(key): plain_value(item) for key, item in point.items()})

    return tuple(read)


def read_dimension(value: Any) -> Dimension:
    """Read one of FORMS, or a list. Raise FieldErrors otherwise."""
    if isinstance(value, list):
        return _choice(value)

    if isinstance(value, dict):
        raise FieldError(
            "expected a range or a list, got a mapping",
            "write lr: loguniform(1e-4, 1e-1), or a dotted path such as args.lr",
        )

    if not isinstance(value, str):
        raise FieldError(
            f"expected a range or a list, got {kind_of(value)}", f"write for example {FORMS}"
        )

    call = _CALL.fullmatch(value)
    if call is None:
        is_open = value.count("(") > value.count(")")
        problem = "is missing a closing bracket" if is_open else "is not a range"
        raise FieldError(f"{value!r} {problem}", f"write for example {FORMS}")

    read = _FORMS.get(call[1])
    if read is None:
        raise FieldError(
            f"unknown form {call[1]!r}{did_you_mean(call[1], _FORMS)}", f"write for example {FORMS}"
        )

    arguments = parse_scalar(f"[{call[2]}]")
    if not isinstance(arguments, list):
        raise FieldError(f"{value!r} cannot be read", f"write for example {FORMS}")

    return read(arguments)


def _choice(values: Sequence[Any]) -> Choice:
    if not values:
        raise FieldError("is empty: add values to choose from")

    for at, value in enumerate(values):
        if not isinstance(value, (str, int, float)):
            raise FieldError(
                f"expected text, a number, true or false, got {kind_of(value)}", at=(at,)
            )

        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(f"{kind_of(value)} is not a valid value for a program", at=(at,))

    plain = [plain_value(value) for value in values]
    words = {json.dumps(value).strip('"') for value in plain}
    if len(words) < len(plain):  # a program cannot tell 1 from "1"
        raise FieldError("has the same value twice", "keep one of them")

    if len(plain) > MAX_CHOICES:
        raise FieldError(
            f"has {len(plain)} values; the limit is {MAX_CHOICES}",
            "use int(low, high), which is not limited",
        )

    return Choice(tuple(plain))


def plain_value(value: Any) -> Scalar:
    """Return a plain number, without its original text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)

    return str(value)


def _range(limits: Sequence[Any], *, whole: bool, log: bool) -> tuple[float, float]:
    name = "int" if whole else "uniform"
    kind = int if whole else (int, float)
    if log:
        name = f"log{name}"

    if len(limits) != 2:
        raise FieldError(f"{name} takes two numbers, the lowest and the highest, got {len(limits)}")

    for value in limits:
        if isinstance(value, bool) or not isinstance(value, kind):
            raise FieldError(f"{name} takes {'whole ' * whole}numbers, got {kind_of(value)}")

        limit = MAX_WHOLE if whole else MAX_REAL
        if not abs(value) <= limit:  # NaN, too
            raise FieldError(f"{name} takes numbers up to {limit:.0e}, got {kind_of(value)}")

    low, high = limits
    if low > high:
        raise FieldError(
            f"{kind_of(low)} is more than {kind_of(high)}", "write the lower bound first"
        )

    if low == high:
        raise FieldError(f"has only one value, {kind_of(low)}", "set it under args instead")
    if log and low <= 0:
        raise FieldError(
            f"the lower bound must be above 0 for a log scale, got {kind_of(low)}",
            "write the values themselves, not their logarithms",
        )

    return low, high


def _uniform(limits: Sequence[Any], *, log: bool = False) -> Uniform:
    low, high = _range(limits, whole=False, log=log)
    return Uniform(float(low), float(high), log)


def _normal(numbers: Sequence[Any], *, log: bool = False) -> Normal:
    name = f"{'log' * log}normal"
    limit = 100 if log else MAX_REAL
    if len(numbers) != 2:
        raise FieldError(f"{name} takes two numbers, mean and deviation, got {len(numbers)}")

    for value in numbers:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not abs(value) <= limit:  # NaN, too
            raise FieldError(f"{name} takes numbers up to {limit:g}, got {kind_of(value)}")

    mean, deviation = numbers
    if deviation <= 0:
        raise FieldError(f"the deviation must be above 0, got {kind_of(deviation)}")

    return Normal(float(mean), float(deviation), log)


def _int(limits: Sequence[Any]) -> Integers:
    low, high = _range(limits[:2], whole=True, log=False)
    if len(limits) < 3:
        return Integers(int(low), int(high))

    step = limits[2]
    if len(limits) > 3 or isinstance(step, bool) or not isinstance(step, int):
        raise FieldError(
            "int takes whole numbers: lowest, highest and an optional step", "int(8, 512, 8)"
        )

    if not 1 <= step <= high - low:
        raise FieldError(f"the step {step} must be from 1 to {high - low}", "int(8, 512, 8)")

    return Integers(int(low), int(low) + (int(high) - int(low)) // step * step, step=int(step))


def _logint(limits: Sequence[Any]) -> Integers:
    low, high = _range(limits, whole=True, log=True)
    return Integers(int(low), int(high), log=True)


_FORMS: Mapping[str, Callable[[Sequence[Any]], Dimension]] = {
    "uniform": _uniform,
    "loguniform": partial(_uniform, log=True),
    "normal": _normal,
    "lognormal": partial(_normal, log=True),
    "int": _int,
    "logint": _logint,
    "choice": _choice,
}


def _number(value: float) -> str:
    if float(f"{value:g}") == value:
        return f"{value:g}"

    return repr(value)
