"""Readers of the values of flags. ArgumentTypeError says what is expected. Standard library only."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

_N = TypeVar("_N", int, float)
SECONDS_PER_UNIT = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def factory(text: str) -> str:
    """Return a `package.module:factory`."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text):
        raise argparse.ArgumentTypeError(f"expected package.module:factory, got {text!r}")
    return text


def name_or_factory(names: Iterable[str]) -> Callable[[str], str]:
    """Return a reader of one of the names, or of `module:factory`."""

    def read(text: str) -> str:
        if text in names or ":" in text:
            return text if text in names else factory(text)
        choices = ", ".join(map(repr, sorted(names)))
        raise argparse.ArgumentTypeError(
            f"invalid choice: {text!r} (choose from {choices}), or name your own: module:factory"
        )

    return read


def non_negative_int(text: str) -> int:
    """Read a whole number of 0 or more."""
    return _number(int, text, "a whole number of 0 or more", lambda n: 0 <= n < 2**31)


def positive_int(text: str) -> int:
    """Read a whole number of 1 or more."""
    return _number(int, text, "a whole number of 1 or more", lambda n: n >= 1)


def positive(text: str) -> float:
    """Read a number greater than 0."""
    return _number(float, text, "a number greater than 0", lambda x: 0 < x < float("inf"))


def not_negative(text: str) -> float:
    """Read a number of 0 or more."""
    return _number(float, text, "a number of 0 or more", lambda x: 0 <= x < float("inf"))


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    return _number(float, text, "a number from 0 to 1", lambda x: 0 <= x <= 1)


def decay(text: str) -> float:
    """Read a number between 0 and 1."""
    return _number(float, text, "a number between 0 and 1", lambda x: 0 < x < 1)


def betas(text: str) -> tuple[float, float]:
    """Read two numbers of at least 0 and less than 1, with a comma between them."""
    first, _, second = text.partition(",")
    expected = "two numbers of at least 0 and less than 1, such as 0.9,0.95"
    pair = [_number(float, part, expected, lambda x: 0 <= x < 1) for part in (first, second)]
    return pair[0], pair[1]


def _number(kind: Callable[[str], _N], text: str, expected: str, fits: Callable[[_N], bool]) -> _N:
    try:
        value = kind(text)
        if fits(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")


def seconds(text: str) -> float:
    """Return the seconds of `600` or `10 min`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if not match or match[2] not in SECONDS_PER_UNIT or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 600 or '10 min', got {text!r}")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]
