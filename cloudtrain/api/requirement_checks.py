"""Checks of the packages that a job lists: lines that pip refuses, and lists that are not read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cloudtrain.errors import Issue, Keys, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.source.distributions import CONDA_FILES, Requested, Requirement
from cloudtrain.spec.inputs import CONDA_WAY, LOCK_WAY
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.requirement_files import (
    InvalidRequirements,
    hide_passwords,
    normalised,
    read_toml,
)

FORMS = "NAME, NAME==VERSION, NAME @ ADDRESS or ./PATH"
PROJECT = "pyproject.toml"
PROJECT_WAY = "name them in requirements.txt; the line . there installs the project with them"
POETRY_WAY = "poetry export --without-hashes -o requirements.txt names them there"
PIPENV_WAY = "pipenv requirements > requirements.txt names them there"
NOT_INSTALLED = "is not read: nothing of it is installed"

INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
INDEX_TABLES = (("uv", "index"), ("poetry", "source"), ("pdm", "source"))
"""Tool and key of its indexes in pyproject.toml."""

USUAL_MINORS = range(10, 15)
"""Versions 3.x that a job may meet."""

_OPTION = (
    r"(-[icref]|--(extra-)?index-url|--(constraint|requirement|editable|find-links|no-binary"
    r"|only-binary|trusted-host|use-feature)(?=[\s=]))[\s=]*\S.*"
    r"|--(no-index|prefer-binary|require-hashes|pre)"
)
"""Options that a line may begin with, by "Requirements File Format" of pip's documentation."""

_ADDRESS = r"(?i)(https?|ftp|file|(git|hg|svn|bzr)\+[a-z]+)://\S+"
_OPTIONS_AFTER = r"\s--?(hash|config-settings?|global-option|C)\b.*"
_VARIABLE = r"\$\{[A-Z0-9_]+\}"
_PATH = r"[\w.~-]*/[\w./-]*(\[.*\])?|\.{1,2}(\[.*\])?"
_SSH = r"(?:git\+)?(\w+@[\w.-]+):(\S+)"
_ONE_EQUALS = r"([\w.-]+)\s*=\s*([\w.]+)"


def requirement_issues(plan: Plan, root: Path, requested: Requested) -> Iterator[Issue]:
    """Yield an error for each line that pip refuses, and a note for each list that is not read."""
    for requirement in requested.requirements:
        if problem := _problem(root, requirement):
            yield _at_line(plan, root, requirement, problem)

    yield from _unknown_options(root, requested)
    if plan.spec.dependencies.is_automatic:
        yield from _unread_files(plan, root)
    if plan.spec.dependencies.is_automatic or plan.context.source.requirements == PROJECT:
        yield from _unread_tables(plan, root, requested)


# Lines that pip refuses.


def _problem(root: Path, requirement: Requirement) -> tuple[str, str] | None:
    """Return why pip refuses a requirement, and a hint; None if it may take it."""
    text = re.sub(r"^(-e|--editable)[\s=]+", "", requirement.text)
    first = [*text.split(), ""][0]
    written = _written(root, requirement)
    if first.startswith("file://"):
        return _path_problem(root, unquote(first.removeprefix("file://")), written)
    if re.match(_ADDRESS, text):
        return None

    line = re.sub(_VARIABLE, "1", re.sub(_OPTIONS_AFTER, "", text))
    if _is_requirement(line):
        return None
    if re.fullmatch(_PATH, first):
        return _path_problem(root, os.path.normpath(root.resolve() / first), written)

    hint = FORMS
    if match := re.fullmatch(_ONE_EQUALS, line):
        hint = f"{match[1]}=={match[2]}"
    elif match := re.fullmatch(_SSH, line):
        hint = f"git+ssh://{match[1]}/{match[2]}"

    return f"{requirement.shown!r} is no requirement: pip refuses it", hint


def _written(root: Path, requirement: Requirement) -> str:
    lines = _text(root / requirement.file).splitlines()
    if not 0 < requirement.line <= len(lines):
        return requirement.text

    return lines[requirement.line - 1]


def _is_requirement(line: str) -> bool:
    from packaging.requirements import InvalidRequirement  # slow to import
    from packaging.requirements import Requirement as Parsed

    try:
        address = Parsed(line).url
    except InvalidRequirement:
        return False

    return address is None or re.match(_ADDRESS, address) is not None


def _path_problem(root: Path, place: str, line: str) -> tuple[str, str] | None:
    """Return the problem with a local path. `line`: its text."""
    path = Path(re.sub(r"\[[^\]]*\]$", "", place))
    below = os.path.relpath(path, root.resolve())
    if below.startswith(".."):
        if str(path) in line:
            return None  # an absolute path: the image may have it

        hint = "move it into the source folder, which is all that a job gets"
        return f"{below} is outside of the source folder", hint

    if not path.exists():
        return f"there is no {below} in the source folder", "a path counts from the source folder"
    if path.is_dir():
        if any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
            return None

        return f"{below} has neither pyproject.toml nor setup.py: it is no project", FORMS

    return None


def _at_line(plan: Plan, root: Path, requirement: Requirement, problem: tuple[str, str]) -> Issue:
    message, hint = problem
    path: Keys = ("dependencies",)
    if requirement.file == "dependencies":
        return plan.located(Issue((*path, requirement.line - 1), message, hint))

    place = requirement.place
    if not requirement.line:
        place = _line_with(root, requirement.file, requirement.text)

    return Issue(path, message, hint).at(place)


def _unknown_options(root: Path, requested: Requested) -> Iterator[Issue]:
    for option in requested.options:
        if re.fullmatch(_OPTION, option):
            continue

        files = [file for file in requested.files if option in _text(root / file)]
        place = _line_with(root, files[0], option) if files else "dependencies"
        message = f"{hide_passwords(option)} is no option of a requirements file: pip refuses it"
        yield Issue(("dependencies",), message, "leave it out").at(place)


def _line_with(root: Path, file: str, text: str) -> str:
    """Return `file:line` of the first line with a text; the file alone if there is none."""
    for number, line in enumerate(_text(root / file).splitlines(), 1):
        if text in line:
            return f"{file}:{number}"

    return file


# Lists that are not read.


def _unread_files(plan: Plan, root: Path) -> Iterator[Issue]:
    requirements = plan.context.source.requirements
    conda_file = next((name for name in CONDA_FILES if (root / name).is_file()), None)
    is_sent = str(root / str(conda_file)) in str(plan.request.document)  # the cloud installs it
    if conda_file and not requirements and not is_sent:
        yield warning(f"{conda_file} {NOT_INSTALLED}", CONDA_WAY, origin=conda_file)

    if (root / "uv.lock").is_file() and requirements != "requirements.txt":
        yield warning(
            "is not read: versions may differ from the locked ones", LOCK_WAY, origin="uv.lock"
        )
    if requirements:
        return

    for name in ("setup.py", "setup.cfg"):
        if "install_requires" in _text(root / name):
            yield warning(f"install_requires {NOT_INSTALLED}", PROJECT_WAY, origin=name)
    if (root / "Pipfile").is_file():
        yield warning(NOT_INSTALLED, PIPENV_WAY, origin="Pipfile")


def _unread_tables(plan: Plan, root: Path, requested: Requested) -> Iterator[Issue]:
    """Yield a note for each table of pyproject.toml whose packages or versions are not taken."""
    requirements = plan.context.source.requirements
    if not (root / PROJECT).is_file():
        return

    try:
        document = read_toml(root / PROJECT)
    except (InvalidRequirements, OSError):
        return  # the list is not ours

    project = _table(document, "project")
    yield from _requires_python(plan, str(project.get("requires-python") or ""))
    if requirements not in ("", PROJECT):
        return

    names = {requirement.name for requirement in requested.to_install}
    if "dependencies" in (project.get("dynamic") or ()):
        yield warning(f"dynamic of [project] {NOT_INSTALLED}", PROJECT_WAY, origin=PROJECT)

    poetry = {normalised(name) for name in _table(document, "tool", "poetry", "dependencies")}
    if poetry - names - {"python"}:
        yield warning(f"[tool.poetry.dependencies] {NOT_INSTALLED}", POETRY_WAY, origin=PROJECT)

    yield from _other_places(plan, document, requested)


def _requires_python(plan: Plan, wanted: str) -> Iterator[Issue]:
    """Yield a note if the job's Python is not, or may not be, one that the project is for."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # slow to import

    from cloudtrain.api.image_checks import job_python

    try:
        allowed = SpecifierSet(wanted)
    except InvalidSpecifier:
        return

    python = job_python(plan)
    if python:
        if f"{python}.99" not in allowed:
            message = f"requires-python is {wanted}, and the job's Python is {python}"
            yield warning(message, "another image, or another Python", origin=PROJECT)
    elif not all(f"3.{minor}.99" in allowed for minor in USUAL_MINORS):
        message = (
            f"requires-python is {wanted}; the job's Python is not known, so this is not checked"
        )
        yield warning(message, origin=PROJECT)


def _other_places(plan: Plan, document: Mapping[str, Any], requested: Requested) -> Iterator[Issue]:
    """Yield a note about packages that other tools take from elsewhere, and pip from its index."""
    listed = {requirement.name for requirement in requested.to_install} - {"torch"}
    sources = _table(document, "tool", "uv", "sources")
    elsewhere = listed & {normalised(name) for name in sources}
    tables = ["[tool.uv.sources]"] if elsewhere else []
    for tool, key in INDEX_TABLES:
        indexes = _table(document, "tool", tool).get(key)
        if isinstance(indexes, list) and not all(map(_is_explicit, indexes)):
            tables.append(f"[[tool.{tool}.{key}]]")
            elsewhere = listed

    if not _table(document, "tool", "uv").keys().isdisjoint(("index-url", "extra-index-url")):
        tables.append("the index of [tool.uv]")
        elsewhere = listed

    variables = plan.spec.env.keys() | plan.spec.secrets.keys()
    if elsewhere and variables.isdisjoint(INDEX_VARIABLES):
        hint = (
            "name the index in requirements.txt (--index-url, --extra-index-url) or as"
            " PIP_INDEX_URL under env, and other places as NAME @ ADDRESS"
        )
        message = (
            f"{' and '.join(tables)} is not read: pip takes {', '.join(sorted(elsewhere))} from its"
            " own index, which is the public one by default"
        )
        yield warning(message, hint, origin=PROJECT)


def _is_explicit(index: Any) -> bool:
    """Return whether a tool uses an index for packages that name it, and no others."""
    if not isinstance(index, Mapping):
        return False

    return bool(index.get("explicit")) or index.get("priority") == "explicit"


def _table(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a table inside others; empty if there is none."""
    value: Any = document
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None

    return value if isinstance(value, Mapping) else {}


def _text(file: Path) -> str:
    try:
        return read_regular_text(file, errors="replace")
    except (OSError, ValueError):
        return ""
