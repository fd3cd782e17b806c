"""The field `inputs`: where each is for each provider, whether it is copied or streamed, and what
it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloudtrain.issues import did_you_mean
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
"""Values of an input's `type`. Tables (MLTable) and models are Azure ML's; elsewhere they are
folders.
"""
_AZURES_TYPES = {
    "uri_file": "file",
    "uri_folder": "folder",
    "mltable": "table",
    "custom_model": "model",
}
_INPUT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Input:
    """One input: where it is for each provider ("*": for all), whether it is copied or streamed,
    and what it is.
    """

    uri: Mapping[str, str]
    mode: Literal["copy", "stream"] = "copy"
    type: str | None = None
    """One of `INPUT_TYPES`; None: by the suffix of its name, or as it is on this machine."""

    def on(self, provider: str) -> str | None:
        """Where it is for one provider; None when the spec has nothing for it."""
        return self.uri.get(provider, self.uri.get("*"))


def read_inputs(value: Any) -> Mapping[str, Input]:
    """Inputs by name. FieldErrors for invalid names and URIs, and for names that would share a
    variable.
    """
    inputs = read_each(expect(value, dict, "a mapping (name: where it is)"), _input, _input_name)
    seen: dict[str, str] = {}
    for name in inputs:
        variable = name.upper().replace("-", "_")
        if variable in seen:
            shared = f"shares the variable CLOUDTRAIN_INPUT_{variable} with {seen[variable]!r}"
            raise FieldError(shared, "give one of them another name", at=(name,))
        seen[variable] = name
    return inputs


def _input(value: Any) -> Input:
    if isinstance(value, (str, Input)):
        return value if isinstance(value, Input) else Input({"*": _uri(value)})
    rest = dict(expect(value, dict, "a URI, a path, or a mapping"))
    mode = rest.pop("mode", "copy")
    if mode not in ("copy", "stream"):
        raise FieldError(f"expected copy or stream, got {kind_of(mode)}", at=("mode",))
    kind = rest.pop("type", None)
    kind = _AZURES_TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if kind is not None and kind not in INPUT_TYPES:
        near = did_you_mean(str(kind), INPUT_TYPES)
        raise FieldError(
            f"expected one of {', '.join(INPUT_TYPES)}, got {kind_of(kind)}{near}", at=("type",)
        )
    if not rest:
        raise FieldError("has no URI", "write uri: …, or one URI per provider")
    uris = read_each(rest, _uri, lambda k: k if k == "uri" else known_provider(k))
    slashed = next((uri for uri in uris.values() if uri.endswith("/")), None)
    if kind == "file" and slashed:
        raise FieldError(
            f"{slashed} ends in a slash, as no file does", "type: folder", at=("type",)
        )
    return Input({"*" if key == "uri" else key: uri for key, uri in uris.items()}, mode, kind)


def _uri(value: Any) -> str:
    uri = read_text(expect(value, str, "a URI or a path"))
    if not uri.strip():
        raise FieldError(
            "has no URI", "an address such as s3://bucket/data/, or a folder such as ./data"
        )
    if "://" not in uri:
        refuse_long(uri)
    try:
        Path(uri).expanduser()
    except RuntimeError:
        raise FieldError(
            f"there is no such user: {kind_of(uri)}", "write ./~name for a folder of that name"
        ) from None
    return uri


def _input_name(name: str) -> str:
    if not _INPUT_NAME.fullmatch(name):
        raise FieldError(
            "is not a valid input name", "letters, digits, - and _, starting with a letter"
        )
    return name
