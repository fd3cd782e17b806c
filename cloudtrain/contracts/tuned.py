"""A job document that leaves room for what a cloud's own service chooses: the launcher puts the values in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.plan import Plan
from cloudtrain.spec.fields import Arguments
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar, override_of

if TYPE_CHECKING:
    from cloudtrain_launcher.tuned import text_of, value_of
else:
    from cloudtrain.bundle import launcher_module

    _tuned = launcher_module("tuned")
    text_of, value_of = _tuned.text_of, _tuned.value_of

__all__ = ["argument_of", "parameters_of", "room_for", "text_of", "value_of"]

Rules = Mapping[str, Mapping[str, Any]]
"""The `tuned` of a job document: cloudtrain_launcher/tuned.py explains it."""


def argument_of(key: str) -> str:
    """The argument that a setting of the space sets; empty for one that is no argument."""
    path = override_of(key, 0).partition("=")[0]
    return path.removeprefix("args.") if path.startswith("args.") else ""


def room_for(plan: Plan) -> tuple[Plan, Rules]:
    """The plan with an empty word, and None, where a trial has the value of an argument; and what belongs there.

    Settings that are no arguments are left out.
    """
    space = plan.spec.sweep.space if plan.spec.sweep else {}
    settings = {key: argument_of(key) for key in space if argument_of(key)}
    groups = _groups(plan.spec.args)
    for argument in settings.values():
        groups[argument] = [_flag(argument), ""]
    values = plan.spec.args.values if isinstance(plan.spec.args.values, Mapping) else {}
    argv = tuple(word for words in groups.values() for word in words)
    room = Arguments(argv, {**values, **dict.fromkeys(settings.values())})
    starts, at = {}, 0
    for argument, words in groups.items():
        starts[argument], at = at, at + len(words)
    rules = {
        key: {"at": starts[argument] + 1, "key": argument, **_rule(space[key])} for key, argument in settings.items()
    }
    return replace(plan, spec=plan.spec.model_copy(update={"args": room})), rules


def parameters_of(rules: Rules, texts: Mapping[str, str]) -> dict[str, Scalar]:
    """The values of a trial as a service tells them. A text that means none that is possible stays a text."""
    found: dict[str, Scalar] = {}
    for key in rules:
        if key in texts:
            try:
                found[key] = value_of(rules[key], texts[key])
            except ValueError:
                found[key] = texts[key]
    return found


def _rule(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choice):
        return {"values": list(dimension.values)}
    return {"type": "int" if isinstance(dimension, Integers) else "float"}


def _flag(argument: str) -> str:
    return argument if argument.startswith("-") else f"--{argument}"


def _groups(arguments: Arguments) -> dict[str, list[str]]:
    """The words of each argument of a mapping."""
    words, groups = list(arguments.argv), {}
    for key, value in arguments.values.items() if isinstance(arguments.values, Mapping) else ():
        count = 0 if value is False else 1 if value is True else 2
        if isinstance(value, (list, tuple)):
            count = 1 + len(value)
        groups[key], words = words[:count], words[count:]
    return groups
