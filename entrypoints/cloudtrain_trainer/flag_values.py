"""Decode the values of flags. ArgumentTypeError says what is expected. Standard library only."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

from cloudtrain_trainer.rules import OPTIMIZERS
from cloudtrain_trainer.tasks.options import OPTIONS

_N = TypeVar("_N", int, float)
SECONDS_PER_UNIT = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def task(text: str) -> str:
    """Return the name of a built-in task, or `module:factory`."""
    if text in OPTIONS or ":" in text:
        return text if text in OPTIONS else factory(text)
    names = ", ".join(map(repr, sorted(OPTIONS)))
    raise argparse.ArgumentTypeError(
        f"invalid choice: {text!r} (choose from {names}), or name your own: module:factory"
    )


def factory(text: str) -> str:
    """Return a `package.module:factory`."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text):
        raise argparse.ArgumentTypeError(f"expected package.module:factory, got {text!r}")
    return text


def optimizer(text: str) -> str:
    """Return the name of an optimizer, or `module:factory`."""
    if text in OPTIMIZERS or ":" in text:
        return text if text in OPTIMIZERS else factory(text)
    names = ", ".join(map(repr, OPTIMIZERS))
    raise argparse.ArgumentTypeError(
        f"invalid choice: {text!r} (choose from {names}), or name your own: module:factory"
    )


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
