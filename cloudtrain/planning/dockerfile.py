"""The files that a Dockerfile copies, and the image that it starts from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_FLAGS = r"--[a-z-]+(=(\"[^\"]*\"|\S*))?\s+"

_HEREDOC = r"<<-?\s*[\"']?[A-Za-z_]"

_EVERYTHING = {"", ".", "/", "./"}

_VARIABLE = r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})"


class Unclear(Exception):
    """Error of a Dockerfile that only the builder can resolve."""


class Instruction(NamedTuple):
    """An instruction of a Dockerfile."""

    line: int
    """Its first line, from 1."""
    name: str
    """Its name in capitals: `COPY`."""
    arguments: str


def copied_sources(text: str) -> list[str]:
    """Return the sources of COPY, ADD and mounts. Raise Unclear if they may be everything."""
    sources: list[str] = []
    for instruction in _instructions(text):
        if instruction.name == "FROM" and "onbuild" in instruction.arguments.lower():
            raise Unclear  # such a base may copy any file

        sources += map(_certain, _sources(instruction))

    return sources


def named_sources(text: str) -> list[tuple[int, str]]:
    """Return each source of COPY and ADD that names one file or folder, with its line.

    Patterns, variables and quotes are left out, and what only the builder can read.
    """
    named = []
    try:
        for instruction in _instructions(text):
            if instruction.name == "RUN":
                continue
            for source in _sources(instruction):
                if not re.search(r"[$\"'\\*?\[]", source):
                    named.append((instruction.line, source))
    except Unclear:
        return named

    return named


def base_image(text: str, args: Mapping[str, str]) -> str:
    """Return the image that the last stage starts from; empty if only the builder knows it.

    `args`: arguments of the build.
    """
    try:
        instructions = list(_instructions(text))
    except Unclear:
        return ""

    values: dict[str, str] = {}
    stages: dict[str, str] = {}
    base = ""
    for instruction in instructions:
        if instruction.name == "ARG" and not base:  # later ones belong to a stage
            for name, _, value in (word.partition("=") for word in instruction.arguments.split()):
                values[name] = args.get(name, value.strip("\"'"))
        if instruction.name == "FROM":
            words = [word for word in instruction.arguments.split() if not word.startswith("--")]
            image = re.sub(_VARIABLE, lambda match: _value(match, values), " ".join(words[:1]))
            base = stages.get(image.lower(), image)
            if len(words) == 3:
                stages[words[2].lower()] = base

    return base


def instructions_mention(text: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a pattern is in an instruction other than FROM."""
    lines = (line for line in text.splitlines() if not re.match(r"\s*(FROM|#)", line))
    return any(map(pattern.search, lines))


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    return values.get(match[1] or match[2]) or match[3] or ""


def _instructions(text: str) -> Iterator[Instruction]:
    directive = re.search(r"^#\s*(syntax|escape)\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if directive and not re.match(r"(docker\.io/)?docker/dockerfile(:|$)", directive[2]):
        raise Unclear  # another language, or other line ends
    if re.search(_HEREDOC, text):
        raise Unclear

    joined = ""
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue

        start = start or number
        joined += line
        if re.search(r"\\[ \t]*$", line):
            joined = joined.rstrip()[:-1] + " "
            continue

        name, _, arguments = joined.strip().partition(" ")
        yield Instruction(start, name.upper(), arguments.strip())
        joined = ""
        start = 0


def _sources(instruction: Instruction) -> Iterator[str]:
    """Yield the sources in the build's folder, as they are written."""
    arguments = instruction.arguments
    if instruction.name == "RUN":
        yield from _mounted(arguments)
    if instruction.name not in ("COPY", "ADD"):
        return

    flags = ""
    while match := re.match(_FLAGS, arguments):
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
            yield source


def _mounted(arguments: str) -> Iterator[str]:
    """Yield the folders that a RUN mounts: `--mount=type=bind,source=…`, and `bind` is the default."""
    for flag in re.findall(r"--mount=(\S+)", arguments):
        options = dict(part.partition("=")[::2] for part in flag.split(","))
        if options.get("type", "bind") == "bind" and "from" not in options:
            yield options.get("source") or options.get("src") or ""


def _certain(source: str) -> str:
    if (
        source in _EVERYTHING
        or any(char in source for char in "$\"'\\")
        or ".." in source.split("/")
    ):
        raise Unclear

    return source
