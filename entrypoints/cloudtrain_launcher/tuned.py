"""The values of a trial that a cloud's own service has chosen, put where the job document leaves
room for them.

All trials of such a sweep share one job document, whose `tuned` names the settings: `at`, the index
in `argv` of the word after the flag, `key`, that of the argument in `values`, and the `type` of a
range (int, float) or the `values` to choose from. A service passes every value as text. Client and
job read it by the same rules. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

Rule = Mapping[str, Any]
"""What `tuned` says of one setting."""

VARIABLES = "CLOUDTRAIN_TUNED_"
"""What the names of the variables begin with that pass the values where a service puts them into
the command.
"""

PARAMETERS = "cloudtrain."
"""What the names of the parameters begin with by which the launcher tells a service's run history
the values.
"""


def plain_name(setting: str) -> str:
    """The name of a setting in letters, digits and underscores, for a service that takes nothing
    else.
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", setting)


def texts_of(document: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, str]:
    """The service's texts by setting, from those by `plain_name`."""
    names = {setting: plain_name(setting) for setting in document["tuned"]}
    return {setting: named[name] for setting, name in names.items() if name in named}


def text_of(value: Any) -> str:
    """A value as the service is told of it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def value_of(rule: Rule, text: str) -> Any:
    """The value that a text of the service means, with its own type. ValueError if it is none that
    is possible.
    """
    if "values" in rule:
        found = [value for value in rule["values"] if text_of(value) == text]
        if not found:
            raise ValueError(
                f"is {text!r}, which is none of {', '.join(map(text_of, rule['values']))}"
            )
        return found[0]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (rule["type"] == "int" and number != int(number)):
        raise ValueError(f"is {text!r}: expected a {'whole ' * (rule['type'] == 'int')}number")
    return int(number) if rule["type"] == "int" else number


def with_values(document: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The job document of one trial: its arguments hold the values, and `tuned` is gone.

    RuntimeError if the service has left one out, or chosen one that is not possible.
    """
    rules: Mapping[str, Rule] = document["tuned"]
    values = {name: _value(name, rule, texts) for name, rule in rules.items()}
    argv: list[str] = list(document["argv"])
    # From the end, so that the words before stay where they are.
    for name in sorted(rules, key=lambda name: -int(rules[name]["at"])):
        at = int(rules[name]["at"])
        words = _words(values[name])
        if words is None:
            del argv[at - 1 : at + 1]
        else:
            argv[at : at + 1] = words
    placed = {rules[name]["key"]: value for name, value in values.items()}
    kept = {key: value for key, value in document.items() if key != "tuned"}
    return {**kept, "argv": argv, "values": {**document["values"], **placed}}


def _value(name: str, rule: Rule, texts: Mapping[str, str]) -> Any:
    if name not in texts:
        raise RuntimeError(f"the platform has chosen no value for {name}, which this sweep varies")
    try:
        return value_of(rule, texts[name])
    except ValueError as error:
        raise RuntimeError(f"the platform's value for {name} {error}") from None


def _words(value: Any) -> list[str] | None:
    """The words after the flag, as job.yaml means a value: none for true; None for false, which has
    no flag either.
    """
    if isinstance(value, bool):
        return [] if value else None
    return [text_of(value)]
