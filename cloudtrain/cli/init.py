"""The command `init`: a starter job.yaml with its program."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import click

from cloudtrain.cli.options import json_option
from cloudtrain.cli.output import command, print_json, print_message
from cloudtrain.errors import UsageError
from cloudtrain.runs.files import storing
from cloudtrain.spec.model import json_schema
from cloudtrain.spec.sources import FILE, is_program

SCHEMA_FILE = "job.schema.json"
"""Schema that the first line of the starter names, for editors."""


@click.command("init", epilog="Example:\n\n  cloudtrain init my-job")
@click.argument("folder", default=".", metavar="[DIR]", type=click.Path(path_type=Path))
@json_option
def init_command(folder: Path, as_json: bool) -> None:
    """Write a commented starter job.yaml, and a train.py, into DIR (default: here).

    Existing files are not overwritten. The job.schema.json beside them lets editors complete and
    check job.yaml.
    """
    if is_program(folder):
        hint = f"{command('submit', str(folder))} needs no job.yaml"
        raise UsageError(f"{folder} is a script, not a folder", hint=hint)

    texts = {FILE: _starter(FILE), "train.py": _starter("train.py")}
    if not os.path.exists(folder / SCHEMA_FILE):  # noqa: PTH110
        texts[SCHEMA_FILE] = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"

    written = _write(folder, texts)
    if as_json:
        print_json({"written": written})
        return

    print_message(f"wrote {', '.join(written[:-1])} and {written[-1]}")
    words = ["submit"]
    if folder != Path():
        words.append(str(folder))

    print_message(f"  next     {command(*words)}")


def _write(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Write all of the files or none, and return their paths."""
    paths = [str(folder / name) for name in texts]
    taken = [path for path in paths if os.path.exists(path)]  # noqa: PTH110  (false, not an error, for what no disk can hold)
    if taken:
        message = (
            f"{' and '.join(taken)} exist{'s' * (len(taken) == 1)} already; no file was written"
        )
        raise UsageError(message, hint=command("init", "ANOTHER_FOLDER"))

    with storing(folder, command("init", "ANOTHER_FOLDER")):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")

    return paths


def _starter(name: str) -> str:
    return (files("cloudtrain.cli") / "starter" / name).read_text(encoding="utf-8")
