"""Options of a command line by name, with their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cloudtrain.spec.fields import plain
from cloudtrain.spec.yaml_document import parse_scalar

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(=(?P<value>.*))?", re.DOTALL)


def options_of(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a command line with their values, and the words before them.

    Several words after an option are a list, none is `True`, as for `read_arguments`.
    """
    options: dict[str, list[str]] = {}
    before_options: list[str] = []
    current = before_options

    for word in argv:
        match = _OPTION.fullmatch(word)
        if match is None:
            current.append(word)
            continue

        current = options[match["name"]] = []
        if match["value"] is not None:
            current.append(match["value"])
            current = before_options

    return {name: _value_of(words) for name, words in options.items()}, before_options


def _value_of(words: Sequence[str]) -> Any:
    values = [plain(parse_scalar(word)) for word in words]
    if not values:
        return True
    if len(values) != 1:
        return values

    return values[0]
