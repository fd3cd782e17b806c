"""Checks of requirements that pip may download without running a build script here.

`dependencies: {vendor: true}` downloads wheels only. A line may undo that: options appear in
requirements files and after a requirement, and pip accepts abbreviations. So only lines that are
known to be harmless are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from urllib.parse import urlsplit

from cloudtrain.errors import SourceError
from cloudtrain.source.requirements import Requested, hide_passwords

_HARMLESS_OPTION = re.compile(
    r"--pre|--prefer-binary|--no-index|--require-hashes|--only-binary[= ]:all:|"
    r"((-i|-f) |--(index-url|extra-index-url|find-links|trusted-host)[= ] *)[^\s\"'\\-][^\s\"'\\]*"
)
_HASHES = re.compile(r"(\s+--hash[= ]\w+:[0-9a-fA-F]+)+\s*")
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[\w\s,.-]*\])?\s*([<>=!~;(][^/\\]*)?"
)
_ARCHIVE = re.compile(r"\.(zip|whl|tar|t[bglx]z2?|tar\.\w+)", re.IGNORECASE)
_ADDRESS = re.compile(r"\S+://\S+")


def check_lines(requested: Requested) -> None:
    """Raise SourceError with every line that may make pip build a package."""
    lines = [*_options(requested), *_requirements(requested)]
    if not lines:
        return
    hint = "remove it, or leave vendor out: then each node installs and builds by itself"
    message = "; ".join(f"{place}: {hide_passwords(text)}" for place, text in lines)
    raise SourceError(
        f"{message} may run a build script here, and vendor: true takes wheels alone", hint=hint
    )


def is_harmless(text: str) -> bool:
    """Return whether a requirement names a wheel, or a project with wheels only."""
    options = re.search(r"\s-", text)
    bare = text[: options.start()] if options else text
    if options and not _HASHES.fullmatch(text[options.start() :]):
        return False
    address = _ADDRESS.search(bare)
    if address is None:
        named = _NAMED.fullmatch(bare)
        # pip reads the name of an archive as a file of the working folder
        return named is not None and not _ARCHIVE.search(named["name"])
    parts = urlsplit(address.group())
    return parts.scheme in ("http", "https", "file") and parts.path.endswith(".whl")


def _options(requested: Requested) -> Iterator[tuple[str, str]]:
    for text, place in zip_longest(requested.options, requested.option_places):
        if not _HARMLESS_OPTION.fullmatch(text):
            yield place or requested.files[0], text


def _requirements(requested: Requested) -> Iterator[tuple[str, str]]:
    for requirement in requested.requirements:
        if not is_harmless(requirement.text):
            yield requirement.place, requirement.shown
