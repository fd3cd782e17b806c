"""Reader of `inputs`: location per provider, copy or stream, and type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloudtrain.errors import did_you_mean
from cloudtrain.spec.fields import (
    FieldError,
    expect,
    known_provider,
    read_each,
    read_text,
    refuse_long,
)
from cloudtrain.spec.yaml_document import kind_of

INPUT_TYPES = ("file", "folder", "table", "model", "mlflow_model", "triton_model")
"""Values of an input's `type`. Tables and models belong to Azure ML; elsewhere folders."""
_INPUT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Input:
    """An input: its location per provider ("*": all), its mode and its type."""

    uri: Mapping[str, str]
    mode: Literal["copy", "stream"] = "copy"
    type: str | None = None
    """One of `INPUT_TYPES`; None: decided by its suffix or by the local file."""

    def on(self, provider: str) -> str | None:
        """Return the location for a provider, or None."""
        return self.uri.get(provider, self.uri.get("*"))


def read_inputs(value: Any) -> Mapping[str, Input]:
    """Read inputs by name. Raise FieldErrors for invalid names, URIs and shared variables."""
    inputs = read_each(expect(value, dict, "a mapping (name: location)"), _input, _input_name)
    names: dict[str, str] = {}
    for name in inputs:
        variable = name.upper().replace("-", "_")
        if variable in names:
            shared = f"shares the variable CLOUDTRAIN_INPUT_{variable} with {names[variable]!r}"
            raise FieldError(shared, "give one of them another name", at=(name,))
        names[variable] = name
    return inputs


def _input(value: Any) -> Input:
    if isinstance(value, (str, Input)):
        return value if isinstance(value, Input) else Input({"*": _uri(value)})
    places = dict(expect(value, dict, "a URI, a path, or a mapping"))
    mode = places.pop("mode", "copy")
    if mode not in ("copy", "stream"):
        raise FieldError(f"expected copy or stream, got {kind_of(mode)}", at=("mode",))
    kind = places.pop("type", None)
    if kind is not None and kind not in INPUT_TYPES:
        suggestion = did_you_mean(str(kind), INPUT_TYPES)
        raise FieldError(
            f"expected one of {', '.join(INPUT_TYPES)}, got {kind_of(kind)}{suggestion}",
            at=("type",),
        )
    if not places:
        raise FieldError("the URI is missing", "write uri: …, or one URI per provider")
    uris = read_each(places, _uri, lambda k: k if k == "uri" else known_provider(k))
    slashed = next((uri for uri in uris.values() if uri.endswith("/")), None)
    if kind == "file" and slashed:
        raise FieldError(
            f"{slashed} ends in a slash, but a file does not", "type: folder", at=("type",)
        )
    return Input({"*" if key == "uri" else key: uri for key, uri in uris.items()}, mode, kind)


def _uri(value: Any) -> str:
    uri = read_text(expect(value, str, "a URI or a path"))
    if not uri.strip():
        raise FieldError(
            "is empty", "write an address such as s3://bucket/data/, or a folder such as ./data"
        )
    if "://" not in uri:
        refuse_long(uri)
    try:
        Path(uri).expanduser()
    except RuntimeError:
        raise FieldError(
            f"unknown user: {kind_of(uri)}", "write ./~name for a folder of that name"
        ) from None
    return uri


def _input_name(name: str) -> str:
    if not _INPUT_NAME.fullmatch(name):
        raise FieldError(
            "is not a valid input name", "letters, digits, - and _, starting with a letter"
        )
    return name
