"""Messages for pydantic's errors: what was expected, what was found, similar keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel

from cloudtrain.issues import Issue, Keys, did_you_mean
from cloudtrain.spec.dependencies import CONDA_WAY
from cloudtrain.spec.fields import EMPTY_HINT, FieldErrors
from cloudtrain.spec.yaml_document import kind_of

WholeSpec = Callable[[], type[BaseModel]]
"""Maker of the model with all provider sections. Called only to list keys."""

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def issues_of(item: Any, spec: WholeSpec) -> list[Issue]:
    """Return the issues for one of the `errors()` of a ValidationError."""
    keys = tuple(item["loc"])
    kind = item["type"]
    value = item["input"]
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        message = f"unknown key{did_you_mean(str(keys[-1]), _known_keys(spec, keys[:-1]))}"
        is_conda = "conda" in str(keys[-1]) or _has_conda(value)
        return [Issue(keys, message, CONDA_WAY if is_conda else _other_section(spec, keys))]
    if kind == "value_error" and isinstance(context["error"], FieldErrors):
        return [replace(issue, path=(*keys, *issue.path)) for issue in context["error"].issues]
    if kind in _EXPECTED:
        hint = EMPTY_HINT if value is None else None
        return [Issue(keys, f"expected {_EXPECTED[kind]}, got {kind_of(value)}", hint)]
    if kind == "missing":
        return [Issue(keys, "is missing", _meaning(spec, keys))]
    if kind == "literal_error":
        return [Issue(keys, _not_one_of(re.findall(r"'([^']+)'", context["expected"]), value))]
    if kind == "greater_than_equal":
        return [Issue(keys, f"must be at least {context['ge']}, got {kind_of(value)}")]
    if kind == "less_than_equal":
        return [Issue(keys, f"must be at most {context['le']}, got {kind_of(value)}")]
    return [Issue(keys, f"{item['msg'][:1].lower()}{item['msg'][1:]}, got {kind_of(value)}")]


def _other_section(spec: WholeSpec, keys: Keys) -> str | None:
    """Return a hint if another section has this field: `azure.workspace` for `aws.workspace`."""
    if len(keys) != 2:
        return None
    sections = (name for name in spec().model_fields if name != keys[0])
    owners = [name for name in sections if keys[1] in _known_keys(spec, (name,))]
    return f"this is a field of {' and '.join(owners)}: {owners[0]}.{keys[1]}" if owners else None


def _has_conda(value: Any) -> bool:
    """Return whether a value is a conda environment, as in Azure ML's documentation."""
    return isinstance(value, dict) and any("conda" in str(key) for key in value)


def _not_one_of(options: Sequence[str], value: Any) -> str:
    """Return `expected minimize or maximize, got 'max' (did you mean 'maximize'?)`."""
    suggestion = did_you_mean(str(value), options)
    for option in options:
        if isinstance(value, str) and value and option.startswith(value.lower()):
            suggestion = f" (did you mean {option!r}?)"
            break
    return f"expected {', '.join(options[:-1])} or {options[-1]}, got {kind_of(value)}{suggestion}"


def _known_keys(spec: WholeSpec, keys: Keys) -> tuple[str, ...]:
    model = _model_at(spec, keys)
    return tuple(model.model_fields) if model else ()


def _meaning(spec: WholeSpec, keys: Keys) -> str | None:
    """Return the description of a field."""
    model = _model_at(spec, keys[:-1])
    field = model.model_fields.get(str(keys[-1])) if model else None
    return field.description if field else None


def _model_at(spec: WholeSpec, keys: Keys) -> type[BaseModel] | None:
    """Return the model of a section, or None."""
    model: Any = spec()
    for key in keys:
        field = model.model_fields.get(str(key))
        # `Sweep | None` has one part that is a model.
        parts = (field.annotation, *get_args(field.annotation)) if field else ()
        models = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        if not models:
            return None
        model = models[0]
    section: type[BaseModel] = model
    return section
