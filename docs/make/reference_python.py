"""The reference of the Python API, from its signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import cloudtrain
from reference_page import literal


def python() -> str:
    """Return the names of `cloudtrain` and their methods."""
    parts = ["Names of `import cloudtrain`; [errors](#errors) are at the end.\n"]
    for name in cloudtrain.__all__:
        value = getattr(cloudtrain, name)
        if isinstance(value, type) and issubclass(value, Exception):
            continue
        parts += _described(f"cloudtrain.{name}", value)
        if isinstance(value, type):
            methods = [(key, item) for key, item in vars(value).items() if not key.startswith("_")]
            for key, item in methods:
                if inspect.isfunction(item):
                    parts += _described(f"{name}.{key}", item, level=3)
    return "\n".join(parts)


def _described(name: str, value: Any, level: int = 2) -> list[str]:
    parts = [f"{'#' * level} {name}\n"]
    if inspect.isfunction(value):
        parts.append(f"```text\n{_signature(name.rpartition('.')[2], value)}\n```\n")
    text = re.sub(
        r"^>>> .*$", r"```pycon\n\g<0>\n```", inspect.getdoc(value) or "", flags=re.MULTILINE
    )
    return [*parts, f"{literal(text)}\n"]


def _signature(name: str, value: Callable[..., Any]) -> str:
    """On one line if it fits, else a parameter a line."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    text = re.sub(r"^\(self(, )?", "(", text)
    if len(name + text) <= 110:
        return name + text
    inside, _, after = text[1:].rpartition(")")
    parameters = re.sub(r", (?=\w+:|\*)", ",\n    ", inside)
    return f"{name}(\n    {parameters},\n){after}"
