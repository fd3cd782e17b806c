"""Requirements of a job, from requirements.txt or pyproject.toml. Standard library only.

The client reads these files too, for its plan and its checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cloudtrain_wire.bounded_files import read_regular_text

AUTOMATIC = ("requirements.txt", "pyproject.toml")
"""Files at the top of the source folder that are read by default; the first with any counts."""

MAX_FILES = 100
"""Maximum number of included files, direct or not, repetitions counted."""
MAX_DEPTH = 20
MAX_TOTAL_BYTES = 16 << 20

_NAME = (
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<extras>\[[^\]]*\])?\s*(?P<rest>.*)"
)
_INCLUDE = r"(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-[rc]))\s*(?P<file>\S.*)"
_EDITABLE = r"(?:-e|--editable)(?:\s+|=)\s*(?P<path>\S+)"
_FIND_LINKS = r"(?P<option>-f|--find-links)(?:\s+|=)\s*(?P<path>\S+)"
_LOGIN = r"(?<=://)[^/@\s]+(?=@)"
_HASH = re.compile(r"\s--hash[ =]")


class InvalidRequirements(ValueError):
    """A file is not valid for its type; the message names the file and, if known, the line."""


@dataclass(frozen=True)
class Requirement:
    """One requirement, in an installer's syntax."""

    text: str
    """One line without comments, with its hashes."""
    name: str
    """The normalised name of the distribution; empty for a path or an address without a name."""
    file: str
    """Path below the source folder, or `dependencies`."""
    line: int = 0
    """Line number from 1; 0: unknown."""
    constraint: bool = False
    """True if it only restricts the version (`-c`)."""

    @property
    def place(self) -> str:
        """Return the file and line, such as `requirements.txt:3`."""
        if not self.line:
            return self.file

        return f"{self.file}:{self.line}"

    @property
    def shown(self) -> str:
        """Return the text for messages: without hashes and passwords."""
        return hide_passwords(_HASH.split(self.text)[0].strip())

    @property
    def has_password(self) -> bool:
        """Return whether an address contains a password, rather than a `${NAME}` placeholder."""
        logins = re.findall(_LOGIN, self.text)
        return any(login != "git" and "$" not in login for login in logins)

    @property
    def is_local(self) -> bool:
        """Return whether it is built from files of this machine; a wheel is built already."""
        return bool(re.match(_EDITABLE, self.text)) or ("file:" in self.text and not self.wheel)

    @property
    def wheel(self) -> str:
        """Return the path of its local wheel; else empty."""
        match = re.search(r"file://(/\S+\.whl)", self.text)
        if not match:
            return ""

        return unquote(match[1])

    @property
    def exact(self) -> str:
        """Return the pinned version; empty without one."""
        match = re.search(r"^[^;@]*?={2,3}\s*([^\s;,*]+)\s*(;|--hash|$)", self.text)
        if not match:
            return ""

        return match[1]


@dataclass(frozen=True)
class Requested:
    """All requirements of a job."""

    requirements: tuple[Requirement, ...] = ()
    options: tuple[str, ...] = ()
    """Installer options in the files, such as `--extra-index-url …`."""
    files: tuple[str, ...] = ()
    """Paths of the files read, below the source folder."""

    @property
    def to_install(self) -> tuple[Requirement, ...]:
        """Return the requirements to install, without constraints."""
        return tuple(requirement for requirement in self.requirements if not requirement.constraint)

    @property
    def is_hashed(self) -> bool:
        """Return whether all requirements have hashes: only those are installed, with a check."""
        texts = [requirement.text for requirement in self.to_install]
        return bool(texts) and all(map(_HASH.search, texts))

    @property
    def is_local(self) -> bool:
        """Return whether any is built from the source, so that its text misses its content."""
        return any(requirement.is_local for requirement in self.to_install)

    @property
    def passwords(self) -> tuple[str, ...]:
        """Return user names and passwords in addresses."""
        parts: list[str] = []
        for text in self.options + tuple(requirement.text for requirement in self.requirements):
            for login in re.findall(_LOGIN, text):
                parts.append(login)
                parts += login.split(":")

        return tuple(parts)


def hide_passwords(text: str) -> str:
    """Replace user names and passwords in addresses by `***`."""
    return re.sub(_LOGIN, "***", text)


def normalised(name: str) -> str:
    """Return a distribution's name as the package index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requested_list(texts: Iterable[str]) -> Requested:
    """Parse the lines under `dependencies:`, in the syntax of requirements.txt."""
    return _collect((line, number, "dependencies") for number, line in enumerate(texts, 1))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raise InvalidRequirements for invalid TOML or without a TOML reader."""
    try:
        import tomllib as toml  # type: ignore[import-not-found,unused-ignore]  # Python 3.11
    except ImportError:
        try:
            from pip._vendor import tomli as toml  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ImportError:
            why = (
                "this Python cannot read it: use Python 3.11, install pip, or use requirements.txt"
            )
            raise InvalidRequirements(f"{path.name}: {why}") from None

    try:
        document: dict[str, Any] = toml.loads(read_regular_text(path))
    except RecursionError:
        raise InvalidRequirements(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequirements(f"{path.name} is not valid TOML: {error}") from None

    return document


def read_requested(folder: Path, file: str) -> Requested:
    """Read a requirements file of the source. Raise OSError or InvalidRequirements."""
    if file.endswith(".toml"):
        return read_project(folder, file)

    return _RequirementsReader(folder).read(file)


def read_project(folder: Path, file: str) -> Requested:
    """Read `[project] dependencies` of a pyproject.toml; empty without that table."""
    project = read_toml(folder / file).get("project")
    listed = project.get("dependencies", []) if isinstance(project, dict) else []
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise InvalidRequirements(f"{file}: project.dependencies is not a list of strings")
    if not all(text.strip() for text in listed):
        raise InvalidRequirements(f"{file}: project.dependencies holds an empty text")

    return replace(_collect((text, 0, file) for text in listed), files=(file,))


class _RequirementsReader:
    """Reader of one file and its includes, with limits on files and bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def read(self, file: str, around: tuple[str, ...] = (), constraint: bool = False) -> Requested:
        """Read a file. `around`: the files that include it; `constraint`: included by `-c`."""
        requirements: list[Requirement] = []
        options: list[str] = []
        files = [file]

        for line, number in _logical_lines(self._text(file, around)):
            included = re.match(_INCLUDE, line)
            if included is None or "://" in included["file"]:
                requested = _collect([(line, number, file)], self._folder, constraint)
            else:
                restricts = constraint or line.startswith(("-c", "--constraint"))
                requested = self._include(included["file"], number, (file, *around), restricts)

            requirements += requested.requirements
            options += requested.options
            files += requested.files

        return Requested(tuple(requirements), tuple(options), tuple(dict.fromkeys(files)))

    def _include(
        self, name: str, number: int, around: tuple[str, ...], constraint: bool
    ) -> Requested:
        file = around[0]
        name = Path(Path(file).parent, name.strip("'\"")).as_posix()
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
        if around:
            first = around[-1]
        else:
            first = file

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
    """Yield joined lines without comments, with the number of their first line."""
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
    """Sort numbered lines into requirements and options."""
    requirements = []
    options = []

    for line, number, file in lines:
        try:
            if folder:
                text = _absolute(line, folder, file)
            else:
                text = line
        except ValueError as error:  # a NUL in a path
            raise InvalidRequirements(f"{file}:{number}: {error}") from None

        if text.startswith("-") and not re.match(_EDITABLE, text):
            options.append(text)
            continue

        requirements.append(Requirement(text, _name_of(text), file, number, constraint))

    return Requested(tuple(requirements), tuple(options))


def _absolute(line: str, folder: Path, file: str) -> str:
    """Replace a path by a URL without spaces; a project's path starts at the source."""
    editable = re.match(_EDITABLE, line)
    if editable and "://" not in editable["path"]:
        return f"-e {(folder / editable['path']).resolve().as_uri()}"

    links = re.match(_FIND_LINKS, line)

    if links and "://" not in links["path"]:
        # like pip: beside the file, or below the working folder
        target = folder / Path(file).parent / links["path"]
        if not target.is_dir():
            target = folder / links["path"]

        return f"--find-links {target.resolve().as_uri()}"

    if not _is_path(line):
        return line

    path = line.split()[0]

    return (folder / path).resolve().as_uri() + line[len(path) :]


def _is_path(text: str) -> bool:
    first = ""
    if text.split():
        first = text.split()[0]

    return (
        not text.startswith("-")
        and "://" not in first
        and (first.startswith((".", "/")) or first.endswith(".whl"))
    )


def _name_of(text: str) -> str:
    if text.startswith("-") or _is_path(text) or "://" in text.split()[0]:
        return ""
    match = re.match(_NAME, text)
    if not match:
        return ""

    return normalised(match["name"])
