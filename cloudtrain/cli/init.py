"""The commands `init` and `schema`.

`init` writes a starter job.yaml, or one that equals `submit train.py` and flags.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from cloudtrain.cli.options import (
    JobCommand,
    json_option,
    program_arguments,
    resource_options,
    resources_of,
)
from cloudtrain.cli.output import command, print_json, print_message
from cloudtrain.errors import UsageError
from cloudtrain.runs.files import storing
from cloudtrain.spec.model import json_schema
from cloudtrain.spec.sources import FILE, is_program, job_folder
from cloudtrain.spec.written_arguments import written_arguments

SCHEMA_FILE = "job.schema.json"
"""Schema that the first line of the starter names, for editors."""


@click.command(
    "init", cls=JobCommand, epilog="Example:\n\n  cloudtrain init train.py --gpus 8 -- --epochs 3"
)
@click.argument("folder", default=".", metavar="[DIR|SCRIPT]", type=click.Path(path_type=Path))
@resource_options
@json_option
def init_command(folder: Path, as_json: bool, **options: Any) -> None:
    """Write a commented starter job.yaml, and a train.py, into DIR (default: here).

    Existing files are not overwritten. The job.schema.json beside them lets editors complete and
    check job.yaml.

    For a SCRIPT: write the job.yaml that equals `submit SCRIPT` with the same flags and arguments.
    """
    resources = resources_of(options)
    arguments = program_arguments()
    if is_program(folder):
        script = folder
        folder = job_folder(folder)
        if not script.is_file():
            hint = command("init", "DIR") + " writes a starter with its own script"
            raise UsageError(f"{script}: no such file", hint=hint)
        entrypoint = os.path.relpath(os.path.realpath(script), folder)
        texts = {FILE: job_text(resources, arguments, entrypoint)}
        folder = Path(os.path.relpath(folder))
    else:
        texts = {FILE: job_text(resources, arguments), "train.py": _starter("train.py")}
    if not os.path.exists(folder / SCHEMA_FILE):  # noqa: PTH110
        texts[SCHEMA_FILE] = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    written = _write(folder, texts)
    if as_json:
        print_json({"written": written})
        return
    print_message(
        f"wrote {' and '.join((', '.join(written[:-1]), written[-1]) if written[1:] else written)}"
    )
    print_message(f"  next     {command('submit', *(() if folder == Path() else (str(folder),)))}")


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


def job_text(resources: Mapping[str, str], arguments: Sequence[str], script: str = "") -> str:
    """Return the starter with these values.

    For an existing script, fields that are not set become comments.
    """
    text = _starter(FILE)
    if script:
        name = (
            script if re.fullmatch(r"[\w./-]+", script) else json.dumps(script, ensure_ascii=False)
        )
        text = text.replace("entrypoint: train.py ", f"entrypoint: {name} ")
        text = _ARGS.sub(
            "# args: {epochs: 5, verbose: true}   # become --epochs 5 --verbose\n", text
        )
        text = re.sub(
            r"^( *)(processes: 2|checkpoints: .*|limits: \S+ \S+)(?:  |$)",
            r"\1# \2",
            text,
            flags=re.MULTILINE,
        )
    if arguments:
        args_line = f"args: {written_arguments(arguments)}\n"
        text = re.sub(
            rf"{_ARGS.pattern}|^# args: .*\n", lambda _: args_line, text, flags=re.MULTILINE
        )
    for name, value in resources.items():
        field = re.compile(rf"^  (?:# )?{name}: *(?:\[.*?\]|\w+)", re.MULTILINE)
        line = f"  {name}: {value}"
        text = field.sub(lambda match, line=line: line.ljust(len(match[0])), text)  # type: ignore[misc]
    return text


_ARGS = re.compile(r"^args:.*\n(?:  .*\n)+", re.MULTILINE)
"""Arguments of the starter."""


def _starter(name: str) -> str:
    return (files("cloudtrain.cli") / "starter" / name).read_text(encoding="utf-8")


@click.command("schema", epilog="Example:\n\n  cloudtrain schema > job.schema.json")
@json_option
def schema_command(as_json: bool) -> None:  # noqa: ARG001  (it is JSON either way)
    """Print the JSON Schema of job.yaml, for editors."""
    from cloudtrain.spec.model import json_schema

    print_json(json_schema())
