"""The command `skill`: how a coding agent uses cloudtrain."""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.cli.output import print_output
from cloudtrain_wire.bounded_files import read_regular_text

PAGE = Path(__file__).with_name("skill.md")


@click.command("skill", epilog="Example:\n\n  cloudtrain skill > AGENTS.md")
def skill_command() -> None:
    """Print one page for a coding agent: how to plan, rehearse, cap a cost, and read results."""
    print_output(read_regular_text(PAGE).rstrip())
