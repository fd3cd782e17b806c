"""Where a job is read from: job.yaml, a folder that has one, or a script alone, with what flags say laid over it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.errors import UsageError
from cloudtrain.spec.fields import FieldErrors, read_arguments
from cloudtrain.spec.yaml_document import Document, read_document

FILE = "job.yaml"
PROGRAMS = (".py", ".ipynb")
"""How the names of scripts and notebooks end, which need no job.yaml."""


class FlagText(str):
    """An override, `resources.nodes=2`, that remembers the flag by which it was given: `--nodes 2`."""

    flag: str

    def __new__(cls, text: str, flag: str) -> FlagText:
        """The text of the override, and the flag that people have typed."""
        made = super().__new__(cls, text)
        made.flag = flag
        return made


def read_source(path: Path) -> Document:
    """The document of a job: of job.yaml, or of a script, which is a job without a file. UsageError without either."""
    if is_program(path):
        entrypoint = os.path.relpath(path.resolve(), job_folder(path))
        text = f"entrypoint: {json.dumps(entrypoint, ensure_ascii=False)}\n"
        return Document(values={"entrypoint": entrypoint}, name="command line", text=text)
    if not os.path.isdir(path):  # noqa: PTH112  (false, not an error, for what no disk can hold)
        return read_document(path)
    if not (path / FILE).is_file():
        raise UsageError(f"{path}: is a folder without a {FILE}", hint=f"cloudtrain init {path}")
    return read_document(path / FILE)


def job_folder(path: Path) -> Path:
    """The folder from which the paths of a job count.

    A script is sent with the present folder if it lies in it, else with its own; never with a whole home folder.
    """
    if os.path.isdir(path):  # noqa: PTH112
        return path.resolve()
    here, place = Path.cwd(), path.resolve()
    inside = place.is_relative_to(here) and here not in (Path.home(), Path(here.anchor))
    return here if inside and is_program(path) else place.parent


def is_program(path: Path) -> bool:
    """Whether it is named like a script or a notebook: a job without a file."""
    return path.suffix in PROGRAMS and not os.path.isdir(path)  # noqa: PTH112


def with_arguments(document: Document, arguments: Sequence[str]) -> list[FlagText]:
    """The override that gives the program these arguments too, after those of the document; none without arguments."""
    if not arguments:
        return []
    try:
        given = read_arguments(document.values.get("args", ())).argv
    except FieldErrors:  # told when the spec is read
        return []
    text = "args=" + json.dumps([*given, *arguments], ensure_ascii=False)
    return [FlagText(text, f"-- {shlex.join(arguments)}")]
