"""The files that a Dockerfile copies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_FLAGS = re.compile(r"--[a-z-]+(=(\"[^\"]*\"|\S*))?\s+")

_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")

_EVERYTHING = {"", ".", "/", "./"}


class Unclear(Exception):
    """Error of a Dockerfile that only the builder can resolve."""


def copied_sources(text: str) -> list[str]:
    """Return the sources of COPY, ADD and mounts. Raise Unclear if they may be everything."""
    sources: list[str] = []
    for instruction, arguments in _instructions(text):
        sources += _named(instruction, arguments)

    return sources


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    directive = re.search(r"^#\s*(syntax|escape)\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if directive and not re.match(r"(docker\.io/)?docker/dockerfile(:|$)", directive[2]):
        raise Unclear  # another language, or other line ends
    if _HEREDOC.search(text):
        raise Unclear

    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", lines).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        yield instruction.upper(), arguments.strip()


def _named(instruction: str, arguments: str) -> Iterator[str]:
    if instruction == "FROM" and "onbuild" in arguments.lower():  # such a base may copy any file
        raise Unclear
    if instruction == "RUN":
        yield from _mounted(arguments)
    if instruction not in ("COPY", "ADD"):
        return

    flags = ""
    while match := _FLAGS.match(arguments):
        flags += match[0]
        arguments = arguments[match.end() :]

    if "--from=" in flags:  # another stage, or another image
        return

    try:
        if arguments.startswith("["):
            words = json.loads(arguments)
        else:
            words = arguments.split()
    except ValueError:
        raise Unclear from None

    for source in words[:-1]:
        if "://" not in source and not source.startswith("git@"):
            yield _certain(source)


def _mounted(arguments: str) -> Iterator[str]:
    """Yield the folders that a RUN mounts: `--mount=type=bind,source=…`, and `bind` is the default."""
    for flag in re.findall(r"--mount=(\S+)", arguments):
        options = dict(part.partition("=")[::2] for part in flag.split(","))
        if options.get("type", "bind") == "bind" and "from" not in options:
            yield _certain(options.get("source") or options.get("src") or "")


def _certain(source: str) -> str:
    if (
        source in _EVERYTHING
        or any(char in source for char in "$\"'\\")
        or ".." in source.split("/")
    ):
        raise Unclear

    return source
