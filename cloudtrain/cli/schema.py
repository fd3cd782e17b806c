"""The command `schema`: the JSON Schema of job.yaml."""

from __future__ import annotations

import click

from cloudtrain.cli.options import json_option
from cloudtrain.cli.output import print_json
from cloudtrain.spec.model import json_schema


@click.command("schema", epilog="Example:\n\n  cloudtrain schema > job.schema.json")
@json_option
def schema_command(as_json: bool) -> None:  # noqa: ARG001  (it is JSON either way)
    """Print the JSON Schema of job.yaml, for editors."""
    print_json(json_schema())
