"""The commands `cloudtrain infra`: what an account needs before jobs run there, set up, shown and
removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.infra_steps import (
    carried_out,
    changed_settings,
    confirm,
    hint_for_administrators,
    infra_command_line,
    report,
    tell_of_stale_settings,
    write_settings,
)
from cloudtrain.cli.options import json_option, profile_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.terminal import write

if TYPE_CHECKING:
    from cloudtrain.infrastructure import Infrastructure
    from cloudtrain.infrastructure.changes import ChangePlan, Deployment

_provider = click.option(
    "--provider", required=True, metavar="NAME", help="Whose account: aws or azure."
)
_name = click.option(
    "--name", default="cloudtrain", show_default=True, metavar="NAME", help="Of the deployment."
)
_region = click.option(
    "--region", metavar="REGION", help="Where; default: that of the settings or of the cloud's CLI."
)
_yes = click.option("--yes", "-y", is_flag=True, help="Do it without a question.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@click.group(
    "infra",
    epilog="""\b
Examples:
  cloudtrain infra up --provider aws --region us-east-1 --dry-run     what would be made
  cloudtrain infra up --provider aws --region us-east-1               shows that, asks, makes it
  cloudtrain doctor aws                                               is a job right there""",
)
def infra_command() -> None:
    """Set up what an account needs before jobs run there: role, storage, registry, network, budget.

    Providers are aws (a CloudFormation stack) and azure (a deployment in a resource group). `up`
    and `down` show first what they would do, and what of it costs money while no job runs; then
    they ask.
    """


@infra_command.command(
    "up",
    short_help="Create what is missing, change what differs.",
    epilog="""\b
Examples:
  cloudtrain infra up --provider aws --dry-run                   what would be created
  cloudtrain infra up --provider aws --set budget=50 --set alarm_email=me@example.org
  cloudtrain infra up --provider aws --set network=new           with a network of its own
  cloudtrain infra up --provider azure --region westeurope""",
)
@_provider
@_name
@_region
@profile_option
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="Choose a parameter; repeatable. `cloudtrain infra parameters` shows those there are.",
)
@_yes
@_dry_run
@json_option
def up_command(
    provider: str,
    name: str,
    region: str | None,
    given: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create what is missing and change what differs; then write the settings to cloudtrain.toml.

    Doing it again is harmless. After an error or an interruption it goes on where it was.
    """
    from cloudtrain.infrastructure.parameters import read_parameters

    ground = _infrastructure(provider, name, region)
    explained = command("infra", "parameters", "--provider", provider)
    values = read_parameters(given, ground.parameters, explained)
    with hint_for_administrators():
        plan = ground.plan_up(values)
    try:
        _show_plan(plan, dry_run=dry_run, as_json=as_json)
        if not dry_run and not plan.is_empty:
            confirm("Do this?", yes=yes)
    except BaseException:
        ground.discard(plan)
        raise
    if dry_run:
        ground.discard(plan)
        return
    before = ground.show().settings if any(each.action == "delete" for each in plan.changes) else {}
    deployment = carried_out(
        lambda: ground.up(plan, report), infra_command_line("up", provider, name, region)
    )
    write_settings(changed_settings(deployment.settings, before), yes=yes)
    if as_json:
        print_json({"applied": True, "plan": plan.to_json(), "deployment": deployment.to_json()})
        return
    _print_outputs(deployment)
    print_message(f"next: {command('doctor', provider)} asks whether a job would run there")


@infra_command.command("parameters", short_help="Show what --set can choose.")
@_provider
@json_option
def parameters_command(provider: str, as_json: bool) -> None:
    """Show what `infra up --set KEY=VALUE` can choose, its default, and what it costs while no job
    runs.
    """
    from cloudtrain.cli.infra_view import parameter_lines

    ground = _infrastructure(provider, "cloudtrain", None)
    if as_json:
        print_json({"parameters": [each.to_json() for each in ground.parameters]})
        return
    print_output(
        f"{command('infra', 'up', '--provider', provider)} --set KEY=VALUE; each key with its"
        " default:"
    )
    for line in parameter_lines(ground.parameters):
        print_output(line)


@infra_command.command("show", short_help="Show what there is, and its settings.")
@_provider
@_name
@_region
@profile_option
@json_option
def show_command(provider: str, name: str, region: str | None, as_json: bool) -> None:
    """Show what there is of a deployment, and the settings that it means."""
    from cloudtrain.cli.infra_view import NEXT, deployment_lines

    ground = _infrastructure(provider, name, region)
    with hint_for_administrators():
        deployment = ground.show()
    if as_json:
        print_json(deployment.to_json())
        return
    for line in deployment_lines(deployment, ground.parameters):
        print_output(line)
    if deployment.state == "ready":
        print_message(f"next: {command('doctor', provider)} asks whether a job would run there")
    else:
        print_message(
            f"next: {infra_command_line('up', provider, name, region)} {NEXT[deployment.state]}"
        )


@infra_command.command(
    "down",
    short_help="Delete it; what holds data is kept.",
    epilog="""\b
Examples:
  cloudtrain infra down --provider aws --dry-run        what would go, and what stays
  cloudtrain infra down --provider aws                  everything that holds no data
  cloudtrain infra down --provider aws --delete-data    also every run, checkpoint, model and image""",
)
@_provider
@_name
@_region
@profile_option
@click.option(
    "--delete-data", is_flag=True, help="Also delete storage and images, with all that is in them."
)
@_yes
@_dry_run
@json_option
def down_command(
    provider: str,
    name: str,
    region: str | None,
    delete_data: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete a deployment; what holds data is kept, and named, unless --delete-data is given."""
    ground = _infrastructure(provider, name, region)
    with hint_for_administrators():
        plan = ground.plan_down(delete_data=delete_data)
    _show_plan(plan, dry_run=dry_run, as_json=as_json)
    if not plan.changes:
        print_message("  there is nothing of that name; --name and --region look elsewhere")
    if dry_run:
        return
    if not plan.is_empty:
        confirm(
            "Delete this, and all data in it, for good?" if delete_data else "Delete this?", yes=yes
        )
        before = ground.show().settings
        carried_out(
            lambda: ground.down(plan, report), infra_command_line("down", provider, name, region)
        )
        tell_of_stale_settings(before)
    if as_json:
        print_json({"applied": True, "plan": plan.to_json()})


@infra_command.command("render", short_help="Print the template, for a pipeline of your own.")
@_provider
@click.option(
    "--format", "format_", metavar="FORMAT", help="aws: cloudformation or terraform; azure: arm."
)
def render_command(provider: str, format_: str | None) -> None:
    """Print the template, for those who deploy by a pipeline of their own."""
    from cloudtrain.errors import UsageError
    from cloudtrain.issues import did_you_mean

    ground = _infrastructure(provider, "cloudtrain", None)
    if format_ and format_ not in ground.formats:
        message = (
            f"--format {format_}: there is none for"
            f" {provider}{did_you_mean(format_, ground.formats)}"
        )
        raise UsageError(message, hint=f"one of: {', '.join(ground.formats)}")
    write(ground.template(format_ or ground.formats[0]).rstrip("\n"))


def _infrastructure(provider: str, name: str, region: str | None) -> Infrastructure:
    from cloudtrain.providers import get_provider
    from cloudtrain.settings import load_settings

    settings = load_settings(Path.cwd(), {"provider": provider})
    return get_provider(provider).infrastructure(settings, name, region or "")


def _show_plan(plan: ChangePlan, *, dry_run: bool, as_json: bool) -> None:
    """On stdout where the plan is all that was asked for; else on stderr, beside what the command
    is for.
    """
    from cloudtrain.cli.infra_view import plan_lines

    if dry_run and as_json:
        print_json({"applied": False, "plan": plan.to_json()})
        return
    for line in plan_lines(plan):
        (print_output if dry_run else print_message)(line)


def _print_outputs(deployment: Deployment) -> None:
    for name, value in deployment.outputs.items():
        print_output(f"{name}: {value}")
