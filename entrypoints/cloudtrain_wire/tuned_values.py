"""Values of tuned settings: their names in a service, and their text. Standard library only."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

Rule = Mapping[str, Any]
"""`tuned`'s entry for one setting."""

VARIABLES = "CLOUDTRAIN_TUNED_"
"""Prefix of variables with the values, if a service passes them in the command."""

PARAMETERS = "cloudtrain."
"""Prefix of the parameters with the values in a service's run history."""


def plain_name(setting: str) -> str:
    """Return a setting's name in letters, digits and underscores, as some services require."""
    return re.sub(r"[^A-Za-z0-9_]", "_", setting)


def texts_of(document: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, str]:
    """Return the service's texts by setting, from texts by `plain_name`."""
    texts = {}
    for setting in document["tuned"]:
        name = plain_name(setting)
        if name in named:
            texts[setting] = named[name]

    return texts


def text_of(value: Any) -> str:
    """Return a value as text for the service: a string unchanged, other values as JSON."""
    if isinstance(value, str):
        return value

    return json.dumps(value)


def value_of(rule: Rule, text: str) -> Any:
    """Return the typed value of a service's text. Raise ValueError if it is not possible."""
    if "values" in rule:
        matches = [value for value in rule["values"] if text_of(value) == text]
        if not matches:
            raise ValueError(
                f"is {text!r}, which is none of {', '.join(map(text_of, rule['values']))}"
            )

        return matches[0]

    try:
        number = float(text)
    except ValueError:
        number = math.nan

    if not math.isfinite(number) or (rule["type"] == "int" and number != int(number)):
        raise ValueError(f"is {text!r}: expected a {'whole ' * (rule['type'] == 'int')}number")

    if rule["type"] != "int":
        return number

    return int(number)


def with_values(document: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Insert a trial's values into the job document's arguments and remove `tuned`.

    Raise RuntimeError for a missing or impossible value.
    """
    rules: Mapping[str, Rule] = document["tuned"]
    values = {name: _value(name, rule, texts) for name, rule in rules.items()}
    argv: list[str] = list(document["argv"])
    # From the end, so that earlier indexes stay valid.
    for name in sorted(rules, key=lambda name: -int(rules[name]["at"])):
        at = int(rules[name]["at"])
        words = _words(values[name])
        if words is None:
            del argv[at - 1 : at + 1]
        else:
            argv[at : at + 1] = words

    typed = dict(document["values"])
    for name, value in values.items():
        typed[rules[name]["key"]] = value

    result = {**document, "argv": argv, "values": typed}
    del result["tuned"]

    return result


def _value(name: str, rule: Rule, texts: Mapping[str, str]) -> Any:
    if name not in texts:
        raise RuntimeError(f"the platform has chosen no value for {name}, which this sweep varies")

    try:
        return value_of(rule, texts[name])
    except ValueError as error:
        raise RuntimeError(f"the platform's value for {name} {error}") from None


def _words(value: Any) -> list[str] | None:
    """Return the words after the flag: none for true; None for false, which removes the flag."""
    if isinstance(value, bool):
        return [] if value else None
    return [text_of(value)]
