"""What can be chosen about a deployment, `--set KEY=VALUE`: declared by the provider, checked
before it is asked.

A declaration also says which parameter of the cloud's template it is, so that values are translated
in one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.issues import did_you_mean

NONE = "none"
"""The value of a parameter of which nothing is wanted."""
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
EMAIL = "[^@ ,]+@[^@ ,]+"
"""A pattern for one address."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One choice; its values are texts."""

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
    idle_usd_per_month: Mapping[str, float] = field(default_factory=dict)
    """Value -> what it makes a deployment cost while no job runs; values that are not named cost
    nothing.
    """
    template: str = ""
    """Its name in the cloud's template."""
    empty: str = ""
    """The value for which the template takes an empty text or list: `none`."""
    write: Callable[[str], Any] = str
    """From a value to what the template takes; of `empty` it is given an empty text."""
    read: Callable[[Any], str] = str
    """The inverse."""

    def problem(self, value: str) -> str:
        """What is wrong with a value; empty if nothing is."""
        if self.choices and value not in self.choices:
            return (
                f"{value!r} is not one of"
                f" {', '.join(self.choices)}{did_you_mean(value, self.choices)}"
            )
        if self.pattern and not re.fullmatch(self.pattern, value):
            return (
                f"expected a value such as {self.example}, got {value!r}"
                if self.example
                else f"cannot be {value!r}"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "default": self.default,
            "choices": list(self.choices),
            "example": self.example,
            "idle_usd_per_month": dict(self.idle_usd_per_month),
        }


def github_subject(template: str) -> Parameter:
    """Which GitHub workflow may submit: both clouds trust its token by this subject, whole and
    without wildcards.
    """
    return Parameter(
        name="github_subject",
        meaning="the whole subject of the GitHub workflow that may submit; none: no workflow",
        default=NONE,
        pattern=r"none|repo:[A-Za-z0-9_.@-]+/[A-Za-z0-9_.@-]+:[A-Za-z0-9_./@:=-]+",
        example="repo:me/mine:ref:refs/heads/main",
        template=template,
        empty=NONE,
    )


def network_range(template: str, default: str, prefixes: str) -> Parameter:
    """The addresses of a new network. `prefixes`: a pattern for the lengths that the cloud takes:
    `1[6-9]|20`.
    """
    return Parameter(
        name="network_range",
        meaning="addresses of a new network",
        default=default,
        pattern=rf"({_OCTET}[.]){{3}}{_OCTET}/({prefixes})",
        example=default,
        template=template,
    )


def read_parameters(
    given: Sequence[str], known: Iterable[Parameter], command: str
) -> dict[str, str]:
    """The values of `--set KEY=VALUE`, checked; of a key that is given twice the last counts.

    UsageError for the first that is wrong. `command`: what to type to be shown all of them.
    """
    parameters = {each.name: each for each in known}
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected KEY=VALUE", hint=f"{command} shows the keys")
        if name not in parameters:
            message = (
                f"--set {text}: there is no parameter {name!r}{did_you_mean(name, parameters)}"
            )
            raise UsageError(
                message, hint=f"one of: {', '.join(parameters)}; {command} explains them"
            )
        if problem := parameters[name].problem(value):
            raise UsageError(f"--set {text}: {problem}", hint=parameters[name].meaning)
        values[name] = value
    return values


def defaults(parameters: Iterable[Parameter]) -> dict[str, str]:
    """What each is where nobody has chosen."""
    return {each.name: each.default for each in parameters}


def to_template(parameters: Iterable[Parameter], values: Mapping[str, str]) -> dict[str, Any]:
    """The values as the template takes them, by its own names. Parameters without a value are left
    out.
    """
    chosen = [(each, values[each.name]) for each in parameters if each.name in values]
    return {
        each.template: each.write("" if value == each.empty else value) for each, value in chosen
    }


def from_template(parameters: Iterable[Parameter], found: Mapping[str, Any]) -> dict[str, str]:
    """What was chosen for a deployment, by the template's parameters; absent where those are."""
    return {
        each.name: each.read(found[each.template]) or each.empty
        for each in parameters
        if each.template in found
    }
