"""Readers and writers of durations, sizes and money."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_DURATIONS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION_WORDS = {
    "s": "s",
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "m": "min",
    "min": "min",
    "mins": "min",
    "minute": "min",
    "minutes": "min",
    "h": "h",
    "hr": "h",
    "hrs": "h",
    "hour": "h",
    "hours": "h",
    "d": "d",
    "day": "d",
    "days": "d",
}
_SIZES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*"
_MONEY = r"(?i)\$\s*([0-9]+(?:\.[0-9]+)?)|([0-9]+(?:\.[0-9]+)?)\s*(usd|\$)"

DURATION_FORMS = "90 s, 10 min, 6 h, 1 h 30 min, 2 d"
SIZE_FORMS = "512 MiB, 200 GiB, 1 TB"
MONEY_FORMS = "50 USD"


def _any_case(words: Iterable[str]) -> str:
    """Return a pattern of words in any case, longest first. JSON Schema lacks flags."""
    patterns = []
    for word in sorted(words, key=len, reverse=True):
        patterns.append("".join(f"[{sign}{sign.upper()}]" for sign in word))

    return "|".join(patterns)


_NUMBER = r"[0-9]+(\.[0-9]+)?"
DURATION_PATTERN = rf"^\s*({_NUMBER}\s*({_any_case(_DURATION_WORDS)})\s*)+$"
SIZE_PATTERN = rf"^\s*{_NUMBER}\s*({_any_case(_SIZES)})\s*$"
MONEY_PATTERN = rf"^\s*(\$\s*{_NUMBER}|{_NUMBER}\s*({_any_case(['usd'])}|\$))\s*$"
"""Patterns for editors. The readers below decide."""


def parse_duration(text: str) -> int:
    """Return the seconds of "6 h" or "1 h 30 min", rounded up. Raise ValueError."""
    parts = _parts(text)
    units = [_DURATION_WORDS.get(unit, "") for _, unit in parts]
    if not parts or "" in units or len(set(units)) != len(units):
        raise ValueError(
            f"cannot read {_shown(text)} as a duration; write for example {DURATION_FORMS}"
        )

    seconds = 0.0
    for (number, _), unit in zip(parts, units, strict=True):
        seconds += number * _DURATIONS[unit]

    if not 0 < seconds <= 10**9:
        raise ValueError(f"a duration must be between 1 s and 30 years, got {_shown(text)}")

    return -int(-seconds // 1)


def parse_size(text: str) -> int:
    """Return the bytes of "200 GiB" (1024-based) or "1 TB" (1000-based). Raise ValueError."""
    parts = _parts(text)
    if len(parts) != 1 or parts[0][1] not in _SIZES:
        raise ValueError(f"cannot read {_shown(text)} as a size; write for example {SIZE_FORMS}")

    size = parts[0][0] * _SIZES[parts[0][1]]
    if not 1 <= size < 2**63:
        raise ValueError(f"a size must be between 1 byte and 8 EiB, got {_shown(text)}")

    return int(size)


def parse_money(text: str) -> float:
    """Return the US dollars of "50 USD", "$50" or "12.50 USD". Raise ValueError."""
    match = re.fullmatch(_MONEY, text.strip())
    if match is None:
        raise ValueError(
            f"cannot read {_shown(text)} as an amount of money; write for example {MONEY_FORMS}"
        )

    amount = float(match[1] or match[2])
    if not 0 < amount < 1e9:
        raise ValueError(f"an amount must be above 0 and below a billion, got {_shown(text)}")

    return amount


def exact_duration(seconds: int) -> str:
    """Return `6 h`, or `21,601 s (6 h)` for a duration that would be rounded."""
    text = format_duration(seconds)
    if parse_duration(text) == seconds:
        return text

    return f"{seconds:,} s ({text})"


def format_duration(seconds: float) -> str:
    """Return `14 s`, `2 min 5 s`, `1 h 30 min`, `2 d 3 h`: at most two units."""
    remaining_seconds = round(seconds)
    if remaining_seconds < 60:
        if remaining_seconds:
            return f"{remaining_seconds} s"

        return f"{seconds:.1f} s"

    parts = []
    for unit in ("d", "h", "min", "s"):
        count, remaining_seconds = divmod(remaining_seconds, _DURATIONS[unit])
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break

    return " ".join(parts[:2])


def _shown(text: str) -> str:
    if len(text) > 60:
        text = f"{text[:59]}…"

    return repr(text)


def _parts(text: str) -> list[tuple[float, str]]:
    unread = text.strip().lower()
    parts = []

    while unread:
        match = re.match(_PART, unread)
        if match is None:
            return []

        parts.append((float(match[1]), match[2]))
        unread = unread[match.end() :]

    return parts


def format_number(value: Any) -> str:
    """Return a number with three or four significant digits: `0.0712`, `1.9k`, `3e+14`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 999.5e9:
        return f"{value:.3g}"

    # A value that would round to 1000 takes the next unit: never "1e+03k".
    for limit, unit, suffix in (
        (999.5e6, 1e9, "G"),
        (999.5e3, 1e6, "M"),
        (1e4, 1e3, "k"),
    ):
        if abs(value) >= limit:
            return f"{value / unit:.3g}{suffix}"

    if isinstance(value, int):
        return str(value)

    return f"{value:.4g}"
