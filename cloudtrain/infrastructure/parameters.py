"""What can be chosen about a deployment, `--set KEY=VALUE`: declared by the provider, checked before it is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloudtrain.errors import UsageError
from cloudtrain.issues import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One choice; its values are texts, as templates take them."""

    name: str
    """In snake_case, as one types it: `budget`."""
    meaning: str
    """One line for people, with the unit: `monthly budget in US dollars; 0: none`."""
    default: str = ""
    choices: tuple[str, ...] = ()
    """The values there are; empty for any that fits `pattern`."""
    pattern: str = ""
    """A regular expression for the whole value; empty for any text."""
    example: str = ""
    """A value that fits, for the message about one that does not."""

    def problem(self, value: str) -> str:
        """What is wrong with a value; empty if nothing is."""
        if self.choices and value not in self.choices:
            return f"{value!r} is none of {', '.join(self.choices)}{did_you_mean(value, self.choices)}"
        if self.pattern and not re.fullmatch(self.pattern, value):
            return f"{value!r} is not what it takes: {self.meaning}" + (
                f", such as {self.example}" * bool(self.example)
            )
        return ""


def read_parameters(given: Sequence[str], known: Iterable[Parameter]) -> dict[str, str]:
    """The values of `--set KEY=VALUE`, checked; of a key that is given twice the last counts. UsageError lists them."""
    parameters = {each.name: each for each in known}
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected KEY=VALUE", hint=f"one of: {', '.join(parameters)}")
        if name not in parameters:
            message = f"--set {text}: there is no parameter {name!r}{did_you_mean(name, parameters)}"
            raise UsageError(message, hint=f"one of: {', '.join(parameters)}")
        if problem := parameters[name].problem(value):
            raise UsageError(f"--set {text}: {problem}", hint=parameters[name].meaning)
        values[name] = value
    return values
