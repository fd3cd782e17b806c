"""Placeholders in arguments that a node's paths are put in for, and what is wrong with those that
stand for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cloudtrain.issues import Issue, did_you_mean

# Compiled when they are needed: a plan has no time to lose.
_PLACE = (
    r"\$\{(?P<doubled>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(doubled)\s*\})\}"
)
"""`${inputs.train}`, `${outputs.model}`; or `${{inputs.train}}`, as Azure ML writes it."""
_AZURES_OWN = r"\$\{\{\s*((search_space|parent)\.[^}]*?)\s*\}\}"
_OUTPUTS = ("model", "output", "checkpoints")


def unknown_placeholders(args: Any, inputs: Mapping[str, Any]) -> list[Issue]:
    """Placeholders in arguments, `${inputs.train}` or `${outputs.model}`, that stand for nothing."""
    items = (
        args.items()
        if isinstance(args, dict)
        else enumerate(args)
        if isinstance(args, list)
        else ()
    )
    known = {"inputs": tuple(map(str, inputs)), "outputs": _OUTPUTS}
    found: list[Issue] = []
    for key, item in items:
        if "${" not in str(item):
            continue
        for place in re.finditer(_PLACE, str(item)):
            kind = place["kind"]
            name = place["name"]
            names = (
                {each.replace("-", "_") for each in known[kind]}
                if place["doubled"]
                else set(known[kind])
            )
            if (name.replace("-", "_") if place["doubled"] else name) not in names:
                message = f"there is no {kind[:-1]} {name!r}{did_you_mean(name, known[kind])}"
                found.append(Issue(("args", key), message))
        for word in re.findall(_AZURES_OWN, str(item)):
            hint = "here ${inputs.NAME} and ${outputs.model}, .output and .checkpoints are put in"
            found.append(
                Issue(
                    ("args", key),
                    f"${{{{{word[0]}}}}} is a word of Azure ML's pipelines and sweeps",
                    hint,
                )
            )
    return found


def placeholders_in_env(env: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Issue]:
    """Placeholders in variables, where none are put in: the program finds the same in variables of
    ours.
    """
    found: list[Issue] = []
    for key, item in env.items():
        place = re.search(_PLACE, str(item)) if "${" in str(item) else None
        if place and place["name"].replace("_", "-") in {
            str(n).replace("_", "-") for n in (*inputs, *_OUTPUTS)
        }:
            inputs_name = f"CLOUDTRAIN_INPUT_{place['name'].upper().replace('-', '_')}"
            variable = (
                inputs_name
                if place["kind"] == "inputs"
                else "CLOUDTRAIN_OUTPUT_DIR, …_MODEL_DIR, …"
            )
            hint = f"put it into args, or read the variable {variable} in the program"
            found.append(Issue(("env", key), f"{place[0]} is replaced in args only", hint))
    return found
