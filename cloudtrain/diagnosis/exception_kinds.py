"""Advice by the kind of an exception that no rule knows."""

from __future__ import annotations

import re

_KINDS: tuple[tuple[str, str], ...] = (
    (
        r"'NoneType' object",
        (
            "a value of that line is None: often a file that could not be read (cv2.imread returns"
            " None for a wrong path), or a setting that is not given"
        ),
    ),
    (
        r"^KeyError",
        (
            "what the line looks up is not there under that key: compare it with the columns of the"
            " data, the entries of the file or the environment, and the settings"
        ),
    ),
    (
        r"^IndexError",
        (
            "the line asks for more entries than there are: look at the length of what it indexes,"
            " which may be empty"
        ),
    ),
    (
        r"^ValueError: (too many|not enough) values to unpack",
        (
            "a call or an entry of the data has another number of values than the line expects:"
            " look at one"
        ),
    ),
    (
        r"^(NameError|UnboundLocalError)",
        (
            "the line uses a name before anything is assigned to it: a typing mistake, or a branch"
            " not taken"
        ),
    ),
    (
        r"^ZeroDivisionError",
        (
            "the line divides by zero: often a length or a number of steps, since there is too"
            " little data for one batch"
        ),
    ),
    (
        r"^AssertionError",
        (
            "the program's own check at that line failed: read its condition, and print the values"
            " that it compares"
        ),
    ),
    (
        r"^NotImplementedError",
        "the program asks for something that this class or package does not have",
    ),
    (
        r"^TypeError",
        (
            "the line hands a call other values than it takes: look at their types and number, and"
            " at the package's version"
        ),
    ),
    (
        r"^AttributeError",
        (
            "an object lacks the attribute that the line reads: look at its type, and at the"
            " package's version"
        ),
    ),
)


def advice_for(exception: str) -> str:
    """Return advice for a text such as `KeyError: 'labels'`; empty without advice."""
    return next((advice for pattern, advice in _KINDS if re.search(pattern, exception)), "")
