"""What pydantic says of a spec's values, in our words: what was expected, what is there, what a key
may mean.
"""

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
"""Makes the model that has the sections of all providers; called only where keys are to be named.
"""

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
    """The issues of one of the `errors()` of a ValidationError."""
    keys = tuple(item["loc"])
    kind = item["type"]
    given = item["input"]
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        message = f"unknown key{did_you_mean(str(keys[-1]), _known_keys(spec, keys[:-1]))}"
        is_conda = "conda" in str(keys[-1]) or _has_conda(given)
        return [Issue(keys, message, CONDA_WAY if is_conda else _other_section(spec, keys))]
    if kind == "value_error" and isinstance(context["error"], FieldErrors):
        return [replace(issue, path=(*keys, *issue.path)) for issue in context["error"].issues]
    if kind in _EXPECTED:
        hint = EMPTY_HINT if given is None else None
        return [Issue(keys, f"expected {_EXPECTED[kind]}, got {kind_of(given)}", hint)]
    if kind == "missing":
        return [Issue(keys, "is missing", _meaning(spec, keys))]
    if kind == "literal_error":
        return [Issue(keys, _not_one_of(re.findall(r"'([^']+)'", context["expected"]), given))]
    if kind == "greater_than_equal":
        return [Issue(keys, f"must be at least {context['ge']}, got {kind_of(given)}")]
    if kind == "less_than_equal":
        return [Issue(keys, f"must be at most {context['le']}, got {kind_of(given)}")]
    return [Issue(keys, f"{item['msg'][:1].lower()}{item['msg'][1:]}, got {kind_of(given)}")]


def _other_section(spec: WholeSpec, keys: Keys) -> str | None:
    """Name the section that has this field, if the field is in a wrong one: `azure.workspace` for
    `aws.workspace`.
    """
    if len(keys) != 2:
        return None
    sections = (name for name in spec().model_fields if name != keys[0])
    found = [name for name in sections if keys[1] in _known_keys(spec, (name,))]
    return f"it is a field of {' and '.join(found)}: {found[0]}.{keys[1]}" if found else None


def _has_conda(given: Any) -> bool:
    """Whether it is an environment as Azure ML's own documents have it."""
    return isinstance(given, dict) and any("conda" in str(key) for key in given)


def _not_one_of(known: Sequence[str], given: Any) -> str:
    """`expected minimize or maximize, got 'max' (did you mean 'maximize'?)`."""
    start = next(
        (
            word
            for word in known
            if isinstance(given, str) and given and word.startswith(given.lower())
        ),
        None,
    )
    near = f" (did you mean {start!r}?)" if start else did_you_mean(str(given), known)
    return f"expected {', '.join(known[:-1])} or {known[-1]}, got {kind_of(given)}{near}"


def _known_keys(spec: WholeSpec, keys: Keys) -> tuple[str, ...]:
    model = _model_at(spec, keys)
    return tuple(model.model_fields) if model else ()


def _meaning(spec: WholeSpec, keys: Keys) -> str | None:
    """What a field is for, as its model says."""
    model = _model_at(spec, keys[:-1])
    field = model.model_fields.get(str(keys[-1])) if model else None
    return field.description if field else None


def _model_at(spec: WholeSpec, keys: Keys) -> type[BaseModel] | None:
    """The model of a section; None where there is none."""
    model: Any = spec()
    for key in keys:
        field = model.model_fields.get(str(key))
        # Of `Sweep | None` the part that is a model.
        parts = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next(
            (part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None
        )
        if model is None:
            return None
    found: type[BaseModel] = model
    return found
