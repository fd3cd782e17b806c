"""Reader of a program's arguments: `--epochs 3 --amp` becomes `{epochs: 3, amp: true}`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cloudtrain.spec.fields import plain, read_arguments
from cloudtrain.spec.yaml_document import parse_scalar

_PLAIN = re.compile(r"[\w./@%+-]+")
"""Values that a flow mapping can hold without quotes."""

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(=(?P<value>.*))?", re.DOTALL)


def written_arguments(argv: Sequence[str]) -> str:
    """Return arguments as one line of YAML: a mapping if it is exact, else a list."""
    pairs = _pairs(argv)
    if pairs is not None:
        text = "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        try:
            if read_arguments(parse_scalar(text)).argv == tuple(argv):
                return text
        except ValueError:
            pass
    return json.dumps(list(argv), ensure_ascii=False)


def argument_values(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
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
    return values[0] if len(values) == 1 else values


def _pairs(argv: Sequence[str]) -> dict[str, str] | None:
    """Return the value of each flag as YAML, or None unless these are unique flags."""
    pairs: dict[str, str] = {}
    words = list(argv)
    while words:
        flag = words.pop(0)
        key, equals, value = flag.removeprefix("--").partition("=")
        if not re.fullmatch(r"--[A-Za-z][\w-]*", flag) or equals or key in pairs:
            return None
        if words and not words[0].startswith("--"):
            value = words.pop(0)
            pairs[key] = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
            if pairs[key] == value and value.lower() in ("true", "false", "null"):
                pairs[key] = json.dumps(value)
        else:
            pairs[key] = "true"
    return pairs
