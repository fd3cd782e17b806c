"""The reference of the command line, from click, and of job.yaml, from its JSON Schema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from cloudtrain.cli import COMMANDS, cli
from cloudtrain.spec.model import json_schema
from cloudtrain.units import format_duration
from reference_page import literal, page, table


def commands() -> str:
    """Every command with its arguments and options, as click has them."""
    context = click.Context(cli, info_name="cloudtrain")
    parts = [f"{cli.help}\n", *_options(cli)]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is None:
            raise LookupError(name)
        parts += _command(f"cloudtrain {name}", command, context)
    return "\n".join(parts)


def _command(name: str, command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [
        f"## {name}\n",
        f"```text\n{usage}\n```\n",
        f"{inspect.cleandoc(command.help or '')}\n",
        *_options(command),
    ]
    if command.epilog:
        lines = [re.sub(r" {3,}", "   # ", line.strip()) for line in command.epilog.splitlines()]
        parts.append(
            "```sh\n"
            + "\n".join(line for line in lines if line.startswith("cloudtrain"))
            + "\n```\n"
        )
        parts = [part for part in parts if part != "```sh\n\n```\n"]
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            subcommand = command.get_command(context, sub)
            if subcommand is not None:
                parts += _command(f"{name} {sub}", subcommand, context)
    return parts


def _options(command: click.Command) -> list[str]:
    context = click.Context(command)
    records = [
        param.get_help_record(context)
        for param in command.params
        if isinstance(param, click.Option)
    ]
    lines = [f"- `{record[0]}`: {record[1]}\n" for record in records if record]
    return ["".join(lines)] if lines else []


def job_yaml() -> str:
    """Return the page of every field of job.yaml, from its JSON Schema."""
    schema = json_schema()
    parts = [
        (
            "Every field is optional. `cloudtrain schema` prints the JSON Schema for"
            " editors; `cloudtrain init` writes a commented starter with the schema. Write"
            " durations, sizes and money with units: `90 s`, `6 h`, `200 GiB`, `50 USD`. A plan"
            " names the fields that its provider ignores.\n"
        ),
        *_sections("", schema, schema),
        _EXTENDS,
    ]
    return page("job.yaml", "\n".join(parts))


_EXTENDS = """\
## extends

`extends: ../base.yaml` builds on another file, which may extend a third. The path counts from the file that has
it. Mappings are merged key by key. A list, a text or a number replaces that of the base as a whole, and an empty
value (`max_runtime:`) removes it. All other paths, also those of the base, count from the folder of job.yaml.
Messages and plans show the file and line of each value. A circle is refused; so is a file outside of the
repository (the nearest folder with `.git`, but never your home folder), or outside of the folder of the job if
there is none. A run keeps the merged text.
"""


def _sections(path: str, section: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a section, and then the sections inside it, each under its path."""
    inner = {name: _resolved(value, schema) for name, value in section["properties"].items()}
    if path:
        yield f"## {path}\n"
        yield f"{section['description']}\n"
    sections = {name for name, value in inner.items() if value is not section["properties"][name]}
    yield _fields({name: value for name, value in inner.items() if name not in sections})
    for name, value in inner.items():
        if name in sections:
            yield from _sections(f"{path}.{name}".lstrip("."), value, schema)


def _resolved(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section as its definition has it, also where it may be left out; any other field as it is."""
    name = next(
        (variant["$ref"] for variant in (value, *value.get("anyOf", ())) if "$ref" in variant), ""
    ).rpartition("/")[2]
    return schema["$defs"][name] if name else value


def _fields(properties: Mapping[str, Any]) -> str:
    rows = [
        (f"`{name}`", _type(value), _default(value), literal(value.get("description", "")))
        for name, value in properties.items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _type(value: Mapping[str, Any]) -> str:
    kinds = value.get("anyOf") or value.get("oneOf")
    if kinds:
        return " or ".join(text for text in map(_type, kinds) if text)
    if "enum" in value or "const" in value:
        named = value.get("enum", [value.get("const")])
        return "text" if len(named) > 8 else ", ".join(f"`{item}`" for item in named)
    names = value.get("type", "object")
    kind = " or ".join(
        name for name in ([names] if isinstance(names, str) else names) if name != "null"
    )
    return (
        "list"
        if kind == "array"
        else {"object": "mapping", "string": "text", "boolean": "true, false"}.get(kind, kind)
    )


KINDS = {"array": "list", "object": "mapping", "string": "text", "boolean": "true, false"}


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    if default in (None, [], {}, ()) or isinstance(default, dict):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and value.get("examples"):
        return format_duration(default)
    return f"`{default}`"
