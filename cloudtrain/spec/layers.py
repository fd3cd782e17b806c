"""Layers of a job: a document over its base: a file that it extends, or default fields.

Mappings are merged key by key. Lists, texts and numbers replace the base's as a whole, and
an empty value (`key:`) removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cloudtrain.errors import Keys
from cloudtrain.spec.yaml_document import CORE_RESOLVERS, Document, WrittenFloat, WrittenInt


def laid_over(document: Document, base: Document) -> Document:
    """Return a document over its base. Each value keeps its origin; the text is of both."""
    replaced: set[Keys] = set()
    values = _merged(document.values, base.values, (), replaced)
    origins = {}
    for keys, origin in base.origins.items():
        if not any(keys[:depth] in replaced for depth in range(1, len(keys) + 1)):
            origins[keys] = origin

    origins |= document.origins
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=10_000)
    return replace(document, values=values, origins=origins, text=text)


def _merged(
    own: Mapping[str, Any], base: Mapping[str, Any], keys: Keys, replaced: set[Keys]
) -> dict[str, Any]:
    values = dict(base)
    for key, value in own.items():
        at = (*keys, key)
        before = base.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            values[key] = _merged(value, before, at, replaced)
            continue

        replaced.add(at)
        values[key] = value
        if value is None and key in base:
            del values[key]

    return values


def root_of(folder: Path) -> Path:
    """Return the repository around a job's folder, or else the folder.

    A home folder or a disk that is a repository does not count: it holds more than jobs.
    """
    for place in (folder, *folder.parents):
        if place in (Path.home(), Path(place.anchor)):
            break
        if (place / ".git").exists():
            return place

    return folder


class _Dumper(yaml.SafeDumper):
    """Writer of what our reader reads back: YAML 1.2, with numbers as typed."""

    yaml_implicit_resolvers = CORE_RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value that occurs twice in full."""
        return True


def _number(dumper: yaml.SafeDumper, number: WrittenInt | WrittenFloat) -> yaml.Node:
    kind = "int" if isinstance(number, int) else "float"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{kind}", number.text)


_Dumper.add_representer(WrittenInt, _number)
_Dumper.add_representer(WrittenFloat, _number)
