"""Sources of a job: job.yaml, a folder with one, or only a script; what it extends; its defaults."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.errors import Issue, SpecError, UsageError
from cloudtrain.file_names import relative_name
from cloudtrain.settings import default_fields
from cloudtrain.spec.fields import FieldErrors, read_arguments
from cloudtrain.spec.layers import laid_over, root_of
from cloudtrain.spec.yaml_document import Document, kind_of, parse_document
from cloudtrain_wire.bounded_files import FileTooLarge, read_regular_file

FILE = "job.yaml"
EXTENDS = "extends"
"""Key with the file that a job.yaml builds on."""
MAX_BYTES = 1_000_000
PROGRAMS = (".py", ".ipynb")
"""Suffixes of scripts and notebooks, which need no job.yaml."""


class FlagText(str):
    """An override, `resources.nodes=2`, with the flag it came from: `--nodes 2`."""

    flag: str

    def __new__(cls, text: str, flag: str) -> FlagText:
        """Return the override with its flag."""
        made = super().__new__(cls, text)
        made.flag = flag
        return made


def read_source(path: Path) -> Document:
    """Return the document of a job.yaml with its bases, or of a script, over the defaults.

    Raise UsageError for neither, SpecError for a base that cannot be read.
    """
    return with_defaults(_own_source(path), job_folder(path))


def with_defaults(document: Document, folder: Path) -> Document:
    """Return a document over the tables `[defaults]` of the settings of its folder."""
    for fields in default_fields(folder):
        base = Document(values=fields.values, origins=fields.origins)
        document = laid_over(document, base)

    return document


def _own_source(path: Path) -> Document:
    if is_program(path):
        entrypoint = relative_name(os.path.realpath(path), job_folder(path))
        text = f"entrypoint: {json.dumps(entrypoint, ensure_ascii=False)}\n"
        return Document(values={"entrypoint": entrypoint}, name="command line", text=text)

    if os.path.isdir(path):  # noqa: PTH112  (False for names that are too long)
        if not (path / FILE).is_file():
            hint = f"cloudtrain init {path}"
            raise UsageError(f"{path}: is a folder without a {FILE}", hint=hint)

        path /= FILE

    document = read_document(path)
    if EXTENDS not in document.values:
        return document

    return _over_bases(document, path, root_of(job_folder(path)), [])


def _over_bases(document: Document, path: Path, root: Path, files: Sequence[Path]) -> Document:
    """Return a document over the file that it extends, and that over its own.

    `root`: folder that no base may leave. `files`: real paths of the documents above this one.
    """
    values = dict(document.values)
    name = values.pop(EXTENDS, None)
    own = replace(document, values=values)
    files = [*files, Path(os.path.realpath(path))]
    if EXTENDS not in document.values:
        return own

    base = path.parent / str(name)
    place = Path(os.path.realpath(base))
    hint = None
    if not isinstance(name, str) or not name or "\0" in name:
        problem = f"expected the path of a file, got {kind_of(name)}"
    elif not place.is_relative_to(root):
        problem = f"{name} is outside of {root}"
        hint = "a base is in the repository of the job, or in its folder if there is none"
    elif place in files:
        problem = f"{name} extends this file again: {' -> '.join(map(str, [*files, place]))}"
    elif not place.is_file():
        problem = f"no such file: {name}"
        hint = "the path counts from the file that extends it"
    else:
        base = Path(os.path.normpath(base))
        return laid_over(own, _over_bases(read_document(base), base, root, files))

    raise SpecError([Issue((EXTENDS,), problem, hint, origin=document.origin((EXTENDS,)))])


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Raise UsageError if the file cannot be read, SpecError if it is not a mapping of plain values.
    """
    try:
        if path.is_dir():
            hint = f"name the file: {path / FILE}"
            raise UsageError(f"{path}: is a folder, not a spec file", hint=hint)

        raw = read_regular_file(path, MAX_BYTES)
    except FileTooLarge:
        message = f"{path}: the file is too large for a spec (limit {MAX_BYTES:,} bytes)"
        raise UsageError(message, hint="pass data as an input") from None
    except FileNotFoundError:
        hint = "run cloudtrain init for a starter file, or cloudtrain submit train.py for a script"
        raise UsageError(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = len(raw[raw.rfind(b"\n", 0, error.start) + 1 : error.start].decode()) + 1
        coding = "UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        hint = f"save it as UTF-8, for example: iconv -f {coding} -t UTF-8 {path.name}"
        issue = Issue((), "is not UTF-8 text", hint, origin=f"{path}:{line}:{column}")
        raise SpecError([issue]) from None

    return parse_document(text, name=str(path))


def job_folder(path: Path) -> Path:
    """Return the folder for relative paths of a job.

    A script is sent with the current folder if it is inside, else with its own folder. The home
    folder is never sent as a whole.
    """
    if os.path.isdir(path):  # noqa: PTH112
        return path.resolve()

    current = Path.cwd()
    place = Path(os.path.realpath(path))
    inside = place.is_relative_to(current) and current not in (Path.home(), Path(current.anchor))

    return current if inside and is_program(path) else place.parent


def is_program(path: Path) -> bool:
    """Return whether a path is a script or a notebook."""
    return path.suffix in PROGRAMS and not os.path.isdir(path)  # noqa: PTH112


def with_arguments(document: Document, arguments: Sequence[str]) -> list[FlagText]:
    """Return the override that appends arguments for the program, or []."""
    if not arguments:
        return []

    try:
        argv = list(read_arguments(document.values.get("args", ())).argv)
    except FieldErrors:  # reported when the spec is read
        return []

    argv += arguments
    text = f"args={json.dumps(argv, ensure_ascii=False)}"
    return [FlagText(text, f"-- {shlex.join(arguments)}")]
