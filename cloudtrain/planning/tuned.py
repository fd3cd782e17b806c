"""Job documents with room for values that a cloud's own service chooses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.planning.plan import Plan
from cloudtrain.spec.fields import Arguments
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.spec.sweep import Sweep
from cloudtrain.spec.varied_settings import override_of
from cloudtrain_wire.tuned_values import PARAMETERS, VARIABLES, plain_name, text_of, value_of

Rules = Mapping[str, Mapping[str, Any]]
"""Field `tuned` of a job document, explained in cloudtrain_launcher/contract.py."""


def argument_of(key: str) -> str:
    """Return the argument of a setting, or "" for other settings."""
    path = override_of(key, 0).partition("=")[0]
    if not path.startswith("args."):
        return ""

    return path.removeprefix("args.")


def variable_of(key: str) -> str:
    """Return the variable for a setting's value, for services that fill in the command."""
    return f"{VARIABLES}{plain_name(key)}"


def sweep_of(plan: Plan) -> Sweep:
    """Return the section `sweep` of a plan."""
    if plan.spec.sweep is None:
        raise ValueError("the plan needs the section sweep")
    return plan.spec.sweep


def trial_texts(plan: Plan) -> dict[str, str]:
    """Return the values in the arguments of a plan as the service would send them."""
    values = plan.spec.args.values
    if not isinstance(values, Mapping):
        raise TypeError("a sweep varies arguments by their names")
    return {key: text_of(values[argument_of(key)]) for key in sweep_of(plan).space}


def room_for(plan: Plan) -> tuple[Plan, Rules]:
    """Return the plan with empty values for the varied arguments, and their rules.

    Settings that are not arguments are left out.
    """
    space = plan.spec.sweep.space if plan.spec.sweep else {}
    settings = {key: argument_of(key) for key in space if argument_of(key)}
    groups = _groups(plan.spec.args)

    for argument in settings.values():
        groups[argument] = [_flag(argument), ""]

    values: dict[str, Any] = {}
    if isinstance(plan.spec.args.values, Mapping):
        values |= plan.spec.args.values

    values |= dict.fromkeys(settings.values())
    argv: list[str] = []
    starts = {}
    for argument, words in groups.items():
        starts[argument] = len(argv)
        argv += words

    rules = {}
    for key, argument in settings.items():
        rules[key] = {"at": starts[argument] + 1, "key": argument} | _rule(space[key])

    room = Arguments(tuple(argv), values)

    return replace(plan, spec=plan.spec.model_copy(update={"args": room})), rules


def parameters_of(rules: Rules, texts: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the values of a trial from a service. Invalid texts stay texts."""
    result: dict[str, Scalar] = {}
    for key in rules:
        if key in texts:
            try:
                result[key] = value_of(rules[key], texts[key])
            except ValueError:
                result[key] = texts[key]

    return result


def named_texts(rules: Rules, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a run history by setting, from the service or the launcher."""
    result = {}
    for key in rules:
        name = plain_name(key)
        for candidate in (f"{PARAMETERS}{name}", name):
            if candidate in texts:
                result[key] = texts[candidate]
                break

    return result


def _rule(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choice):
        return {"values": list(dimension.values)}

    kind = "int" if isinstance(dimension, Integers) else "float"
    return {"type": kind}


def _flag(argument: str) -> str:
    if argument.startswith("-"):
        return argument

    return f"--{argument}"


def _groups(arguments: Arguments) -> dict[str, list[str]]:
    """Return the words of each argument of a mapping."""
    words = list(arguments.argv)
    groups: dict[str, list[str]] = {}
    if not isinstance(arguments.values, Mapping):
        return groups

    for key, value in arguments.values.items():
        if value is False:
            count = 0
        elif value is True:
            count = 1
        else:
            count = 2

        if isinstance(value, (list, tuple)):
            count = 1 + len(value)

        groups[key] = words[:count]
        words = words[count:]

    return groups
