"""The commands `cloudtrain infra`: what an account needs before jobs run there, set up, shown and removed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cloudtrain.cli.options import json_option, profile_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.terminal import write
from cloudtrain.errors import CloudError, CloudtrainError, RefusedError

if TYPE_CHECKING:
    from cloudtrain.infrastructure import Infrastructure
    from cloudtrain.infrastructure.changes import ChangePlan, Deployment, ResourceEvent
    from cloudtrain.infrastructure.settings_file import SettingsEdit

_provider = click.option("--provider", required=True, metavar="NAME", help="Whose account: aws or azure.")
_name = click.option("--name", default="cloudtrain", show_default=True, metavar="NAME", help="Of the deployment.")
_region = click.option("--region", metavar="REGION", help="Where; default: that of the settings or of the cloud's CLI.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do it without a question.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@click.group("infra")
def infra_command() -> None:
    """Set up what an account needs before jobs run there: role, storage, registry, network, budget.

    Each command shows first what it would do, and what of it costs money while no job runs.
    """


@infra_command.command(
    "up",
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
    provider: str, name: str, region: str | None, given: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Create what is missing and change what differs; then write the settings to cloudtrain.toml.

    Doing it again is harmless. After an error or an interruption it goes on where it was.
    """
    from cloudtrain.infrastructure.parameters import read_parameters

    ground = _infrastructure(provider, name, region)
    explained = command("infra", "parameters", "--provider", provider)
    plan = ground.plan_up(read_parameters(given, ground.parameters, explained))
    try:
        _show_plan(plan, dry_run=dry_run, as_json=as_json)
        if not dry_run and not plan.is_empty:
            _confirm("Do this?", yes=yes)
    except BaseException:
        ground.discard(plan)
        raise
    if dry_run:
        ground.discard(plan)
        return
    deployment = _carried_out(lambda: ground.up(plan, _report), ("up", provider, name, region))
    edit = _settings_edit(deployment)
    _write_settings(edit, yes=yes)
    if as_json:
        print_json({"applied": True, "plan": plan.to_json(), "deployment": deployment.to_json()})
        return
    _print_outputs(deployment)


@infra_command.command("parameters")
@_provider
@json_option
def parameters_command(provider: str, as_json: bool) -> None:
    """Show what `infra up --set KEY=VALUE` can choose, its default, and what it costs while no job runs."""
    from cloudtrain.cli.infra_view import parameter_lines

    ground = _infrastructure(provider, "cloudtrain", None)
    if as_json:
        print_json({"parameters": [each.to_json() for each in ground.parameters]})
        return
    print_output(f"{command('infra', 'up', '--provider', provider)} --set KEY=VALUE; each key with its default:")
    for line in parameter_lines(ground.parameters):
        print_output(line)


@infra_command.command("show")
@_provider
@_name
@_region
@profile_option
@json_option
def show_command(provider: str, name: str, region: str | None, as_json: bool) -> None:
    """Show what there is of a deployment, and the settings that it means."""
    from cloudtrain.cli.infra_view import deployment_lines

    deployment = _infrastructure(provider, name, region).show()
    if as_json:
        print_json(deployment.to_json())
        return
    for line in deployment_lines(deployment):
        print_output(line)


@infra_command.command(
    "down",
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
@click.option("--delete-data", is_flag=True, help="Also delete storage and images, with all that is in them.")
@_yes
@_dry_run
@json_option
def down_command(
    provider: str, name: str, region: str | None, delete_data: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete a deployment; what holds data is kept, and named, unless --delete-data is given."""
    ground = _infrastructure(provider, name, region)
    plan = ground.plan_down(delete_data=delete_data)
    _show_plan(plan, dry_run=dry_run, as_json=as_json)
    if dry_run:
        return
    if not plan.is_empty:
        _confirm("Delete this, and all data in it, for good?" if delete_data else "Delete this?", yes=yes)
        _carried_out(lambda: ground.down(plan, _report), ("down", provider, name, region))
    if as_json:
        print_json({"applied": True, "plan": plan.to_json()})


@infra_command.command("render")
@_provider
@click.option("--format", "format_", metavar="FORMAT", help="aws: cloudformation or terraform; azure: arm.")
def render_command(provider: str, format_: str | None) -> None:
    """Print the template, for those who deploy by a pipeline of their own."""
    from cloudtrain.errors import UsageError
    from cloudtrain.issues import did_you_mean

    ground = _infrastructure(provider, "cloudtrain", None)
    if format_ and format_ not in ground.formats:
        message = f"--format {format_}: there is none for {provider}{did_you_mean(format_, ground.formats)}"
        raise UsageError(message, hint=f"one of: {', '.join(ground.formats)}")
    write(ground.template(format_ or ground.formats[0]).rstrip("\n"))


def _infrastructure(provider: str, name: str, region: str | None) -> Infrastructure:
    from cloudtrain.providers import get_provider
    from cloudtrain.settings import load_settings

    settings = load_settings(Path.cwd(), {"provider": provider})
    return get_provider(provider).infrastructure(settings, name, region or "")


def _show_plan(plan: ChangePlan, *, dry_run: bool, as_json: bool) -> None:
    """On stdout where the plan is all that was asked for; else on stderr, beside what the command is for."""
    from cloudtrain.cli.infra_view import plan_lines

    if dry_run and as_json:
        print_json({"applied": False, "plan": plan.to_json()})
        return
    for line in plan_lines(plan):
        (print_output if dry_run else print_message)(line)


def _confirm(question: str, *, yes: bool) -> None:
    """Ask before anything is changed. RefusedError for a no, and where nobody can answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError("not confirmed, and nobody can be asked here; nothing was changed", hint="--yes")
    if not click.confirm(question, err=True):
        raise RefusedError("not confirmed; nothing was changed")


def _carried_out(work: Callable[[], Any], again: tuple[str, str, str, str | None]) -> Any:
    """The result of the work. An interruption tells how to go on; an error of the cloud keeps its own hint."""
    verb, provider, name, region = again
    chosen = [*(["--region", region] if region else []), *(["--name", name] if name != "cloudtrain" else [])]
    repeated = command("infra", verb, "--provider", provider, *chosen)
    try:
        return work()
    except KeyboardInterrupt:
        _exit_interrupted(repeated)
    except CloudError as error:
        error.hint = error.hint or f"then again: {repeated}"
        raise


def _exit_interrupted(repeated: str) -> NoReturn:
    print_message(f"\ninterrupted; the cloud goes on by itself, and {repeated} goes on watching")
    raise click.exceptions.Exit(130) from None


def _report(event: ResourceEvent) -> None:
    """A line per event on stderr: progress is for people, also beside JSON."""
    from cloudtrain.cli.infra_view import event_line

    print_message(event_line(event))


def _settings_edit(deployment: Deployment) -> SettingsEdit:
    from cloudtrain.infrastructure.settings_file import settings_edit
    from cloudtrain.settings import FILE_NAME

    return settings_edit(Path.cwd() / FILE_NAME, deployment.settings)


def _write_settings(edit: SettingsEdit, *, yes: bool) -> None:
    """Show what would change in the file and write it. A no leaves the file, and is no error: the account is ready."""
    if edit.is_empty:
        return
    print_message(f"\n{edit.path.name}:")
    for line in edit.diff():
        print_message(f"  {line}")
    try:
        _confirm(f"Write this to {edit.path}?", yes=yes)
    except CloudtrainError:
        print_message("  not written")
        return
    edit.write()
    print_message("  written")


def _print_outputs(deployment: Deployment) -> None:
    for name, value in deployment.outputs.items():
        print_output(f"{name}: {value}")
