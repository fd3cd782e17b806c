"""What a job asks for: requirements.txt, pyproject.toml or uv.lock, as one list of requirements.
Standard library only.

The client reads these files too, for its plan and its checks; it imports this file under another
name than the launcher does, so this file imports nothing of ours but its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cloudtrain_launcher.packages.bounded_files import read_regular_text

AUTOMATIC = ("requirements.txt", "uv.lock", "pyproject.toml")
"""Files at the top of the source folder that are read without being named; the first one that asks
for anything.
"""

MAX_FILES = 100
"""Limit of the requirements files that one file includes, directly or not, repetitions counted."""
MAX_DEPTH = 20
MAX_TOTAL_BYTES = 16 << 20

_NAME = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<extras>\[[^\]]*\])?\s*(?P<rest>.*)"
)
_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-[rc]))\s*(?P<file>\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)\s*(?P<path>\S+)")
_FIND_LINKS = re.compile(r"(?P<option>-f|--find-links)(?:\s+|=)\s*(?P<path>\S+)")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HASH = re.compile(r"\s--hash[ =]")


class InvalidRequirements(ValueError):
    """A file cannot be read as what its name says; the message names the file, and the line where
    there is one.
    """


@dataclass(frozen=True)
class Requirement:
    """One requirement, as an installer takes it."""

    text: str
    """In one line, without comments, with its hashes."""
    name: str
    """The distribution's normalised name; empty for a path or an address that does not tell."""
    file: str
    """Where it is written: a path below the source folder, or `dependencies`."""
    line: int = 0
    """The line there, from 1; 0: a file that has none for it."""
    constraint: bool = False
    """Whether it only restricts the version (`-c`)."""

    @property
    def place(self) -> str:
        """`requirements.txt:3`."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def shown(self) -> str:
        """The text for people: without hashes, and without a password in an address."""
        return hide_passwords(_HASH.split(self.text)[0].strip())

    @property
    def has_password(self) -> bool:
        """Whether an address in it holds a password itself, and not a `${NAME}` in its place."""
        return any("$" not in found for found in _PASSWORD.findall(self.text) if found != "git")

    @property
    def is_local(self) -> bool:
        """Whether it is built from files of this machine; a wheel is not, as it is built already."""
        return bool(_EDITABLE.match(self.text)) or ("file:" in self.text and not self.wheel)

    @property
    def wheel(self) -> str:
        """The path of the wheel on this machine that it names; else empty."""
        found = re.search(r"file://(/\S+\.whl)", self.text)
        return unquote(found[1]) if found else ""

    @property
    def exact(self) -> str:
        """The version where exactly one is asked for; else empty."""
        found = re.search(r"^[^;@]*?={2,3}\s*([^\s;,*]+)\s*(;|--hash|$)", self.text)
        return found[1] if found else ""


@dataclass(frozen=True)
class Requested:
    """All that a job asks for."""

    requirements: tuple[Requirement, ...] = ()
    options: tuple[str, ...] = ()
    """Options for the installer that the files hold, such as `--extra-index-url …`."""
    option_places: tuple[str, ...] = ()
    """Where each of them is written, such as `requirements.txt:3`; empty for options that a lock
    file implies.
    """
    files: tuple[str, ...] = ()
    """The files that were read, below the source folder."""

    @property
    def wanted(self) -> tuple[Requirement, ...]:
        """Those that are to be installed, without mere constraints."""
        return tuple(each for each in self.requirements if not each.constraint)

    @property
    def is_hashed(self) -> bool:
        """Whether every requirement has hashes: then nothing else may be installed, and each file
        is checked.
        """
        return bool(self.wanted) and all(_HASH.search(each.text) for each in self.wanted)

    @property
    def is_local(self) -> bool:
        """Whether any of them is built from files of the source itself, so that its content is not
        in its text.
        """
        return any(each.is_local for each in self.wanted)

    @property
    def passwords(self) -> tuple[str, ...]:
        """User names and passwords in addresses."""
        texts = [*self.options, *(each.text for each in self.requirements)]
        return tuple(
            part
            for text in texts
            for found in _PASSWORD.findall(text)
            for part in (found, *found.split(":"))
        )


def hide_passwords(text: str) -> str:
    """The text with user names and passwords in addresses replaced by `***`."""
    return _PASSWORD.sub("***", text)


def normalised(name: str) -> str:
    """A distribution's name as the package index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requested_list(texts: Iterable[str]) -> Requested:
    """What `dependencies:` itself lists: lines of a requirements file."""
    return _collect((line, number, "dependencies") for number, line in enumerate(texts, 1))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file; InvalidRequirements where it is none, or where this Python has nothing that
    reads TOML.
    """
    try:
        import tomllib as toml  # type: ignore[import-not-found,unused-ignore]  # Python 3.11
    except ImportError:
        try:
            from pip._vendor import tomli as toml  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ImportError:
            why = (
                "this Python cannot read it: it takes Python 3.11, or pip; requirements.txt is read"
                " everywhere"
            )
            raise InvalidRequirements(f"{path.name}: {why}") from None
    try:
        document: dict[str, Any] = toml.loads(read_regular_text(path))
    except RecursionError:
        raise InvalidRequirements(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequirements(f"{path.name} is not valid TOML: {error}") from None
    return document


def read_project(folder: Path, file: str) -> Requested:
    """The `dependencies` of a pyproject.toml's `[project]`; none where it has no such table."""
    project = read_toml(folder / file).get("project")
    listed = project.get("dependencies", []) if isinstance(project, dict) else []
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise InvalidRequirements(f"{file}: project.dependencies is not a list of texts")
    if not all(text.strip() for text in listed):
        raise InvalidRequirements(f"{file}: project.dependencies holds an empty text")
    return replace(_collect((text, 0, file) for text in listed), files=(file,))


def read_requirements(folder: Path, file: str) -> Requested:
    """A requirements file and those that it includes."""
    return _RequirementsReader(folder).read(file)


class _RequirementsReader:
    """Reads one file and its includes; counts files and bytes, as includes can multiply."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def read(self, file: str, around: tuple[str, ...] = (), constraint: bool = False) -> Requested:
        """Read a file. `around`: the files that include it; `constraint`: by `-c`."""
        requirements: list[Requirement] = []
        options: list[str] = []
        places: list[str] = []
        files = [file]
        for line, number in _logical_lines(self._text(file, around)):
            included = _INCLUDE.match(line)
            if included is None or "://" in included["file"]:
                found = _collect([(line, number, file)], self._folder, constraint)
            else:
                restricts = constraint or line.startswith(("-c", "--constraint"))
                found = self._include(included["file"], number, (file, *around), restricts)
            requirements += found.requirements
            options += found.options
            places += found.option_places
            files += found.files
        return Requested(
            tuple(requirements), tuple(options), tuple(places), tuple(dict.fromkeys(files))
        )

    def _include(
        self, name: str, number: int, around: tuple[str, ...], constraint: bool
    ) -> Requested:
        file = around[0]
        name = str(Path(Path(file).parent, name.strip("'\"")))
        if name in around:
            raise InvalidRequirements(f"{file}:{number}: {name} includes itself")
        try:
            return self.read(name, around, constraint)
        except OSError as error:
            raise InvalidRequirements(
                f"{file}:{number}: {name} cannot be read: {error.strerror}"
            ) from None

    def _text(self, file: str, around: tuple[str, ...]) -> str:
        try:
            text = read_regular_text(self._folder / file)
        except UnicodeDecodeError:
            raise InvalidRequirements(f"{file} is not UTF-8 text") from None
        self._files += 1
        self._bytes += len(text)
        first = around[-1] if around else file
        if self._files > MAX_FILES:
            raise InvalidRequirements(f"{first} includes too many files (limit {MAX_FILES})")
        if len(around) > MAX_DEPTH:
            raise InvalidRequirements(
                f"{first}: includes are nested too deeply (limit {MAX_DEPTH})"
            )
        if self._bytes > MAX_TOTAL_BYTES:
            limit = f"limit {MAX_TOTAL_BYTES:,} bytes"
            raise InvalidRequirements(f"{first} and its includes are too large ({limit})")
        return text


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines without comments, those that end in a backslash joined; each with the number of its
    first line.
    """
    joined = ""
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        start = start or number
        if bare.endswith("\\"):
            joined += bare[:-1].strip() + " "
            continue
        joined += bare.strip()
        if joined.strip():
            yield joined.strip(), start
        joined = ""
        start = 0
    if joined.strip():
        yield joined.strip(), start


def _collect(
    lines: Iterable[tuple[str, int, str]], folder: Path | None = None, constraint: bool = False
) -> Requested:
    """Lines, each with its number and file, sorted into requirements and options."""
    requirements = []
    options = []
    places = []
    for line, number, file in lines:
        try:
            text = _absolute(line, folder, file) if folder else line
        except ValueError as error:  # a NUL in a path
            raise InvalidRequirements(f"{file}:{number}: {error}") from None
        if text.startswith("-") and not _EDITABLE.match(text):
            options.append(text)
            places.append(f"{file}:{number}")
            continue
        requirements.append(Requirement(text, _name_of(text), file, number, constraint))
    return Requested(tuple(requirements), tuple(options), tuple(places))


def _absolute(line: str, folder: Path, file: str) -> str:
    """A path in a line made an address, which holds no spaces: a project's counts from the source
    folder.
    """
    editable = _EDITABLE.match(line)
    if editable and "://" not in editable["path"]:
        return f"-e {(folder / editable['path']).resolve().as_uri()}"
    links = _FIND_LINKS.match(line)
    if (
        links and "://" not in links["path"]
    ):  # as pip does: beside the file, or below the working folder
        beside = folder / Path(file).parent / links["path"]
        return (
            "--find-links"
            f" {(beside if beside.is_dir() else folder / links['path']).resolve().as_uri()}"
        )
    if not _is_path(line):
        return line
    path = line.split()[0]
    return (folder / path).resolve().as_uri() + line[len(path) :]


def _is_path(text: str) -> bool:
    first = text.split()[0] if text.split() else ""
    return (
        not text.startswith("-")
        and "://" not in first
        and (first.startswith((".", "/")) or first.endswith(".whl"))
    )


def _name_of(text: str) -> str:
    if text.startswith("-") or _is_path(text) or "://" in text.split()[0]:
        return ""
    found = _NAME.match(text)
    return normalised(found["name"]) if found else ""
