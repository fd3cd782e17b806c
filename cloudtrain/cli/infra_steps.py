"""What `cloudtrain infra` does around the work of a provider: ask, carry out, tell how to go on,
write the settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cloudtrain.cli.output import command, print_message
from cloudtrain.errors import CloudError, CloudtrainError, RefusedError

if TYPE_CHECKING:
    from cloudtrain.infrastructure.changes import ResourceEvent, SettingValue
    from cloudtrain.infrastructure.settings_file import SettingsEdit


def confirm(question: str, *, yes: bool) -> None:
    """Ask before anything is changed. RefusedError for a no, and where nobody can answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = "--yes does it without a question, --dry-run only shows it"
        raise RefusedError(
            "not confirmed, and nobody can be asked here; nothing was changed", hint=hint
        )
    if not click.confirm(question, err=True):
        raise RefusedError("not confirmed; nothing was changed")


@contextmanager
def hint_for_administrators() -> Iterator[None]:
    """Who may not even look is told who may."""
    try:
        yield
    except CloudError as error:
        if error.is_denied:
            error.hint = "; ".join(
                filter(None, (error.hint, "setting up an account is for an administrator of it"))
            )
        raise


def infra_command_line(verb: str, provider: str, name: str, region: str | None) -> str:
    """What to type for this very deployment."""
    chosen = [
        *(["--region", region] if region else []),
        *(["--name", name] if name != "cloudtrain" else []),
    ]
    return command("infra", verb, "--provider", provider, *chosen)


def carried_out(work: Callable[[], Any], again: str) -> Any:
    """The result of the work. An interruption tells how to go on; an error of the cloud keeps its
    own hint.
    """
    try:
        return work()
    except KeyboardInterrupt:
        _exit_interrupted(again)
    except CloudError as error:
        error.hint = error.hint or f"then again: {again}"
        raise


def _exit_interrupted(repeated: str) -> NoReturn:
    print_message(f"\ninterrupted; the cloud goes on by itself, and {repeated} goes on watching")
    raise click.exceptions.Exit(130) from None


def report(event: ResourceEvent) -> None:
    """A line per event on stderr: progress is for people, also beside JSON."""
    from cloudtrain.cli.infra_view import event_line

    print_message(event_line(event))


def changed_settings(
    settings: Mapping[str, SettingValue], before: Mapping[str, SettingValue]
) -> SettingsEdit:
    """The edit of this folder's file. `before`: settings that were the deployment's: those it has
    no more go.
    """
    from cloudtrain.infrastructure.settings_file import settings_edit
    from cloudtrain.settings import FILE_NAME

    gone = {key: value for key, value in before.items() if key not in settings}
    return settings_edit(Path.cwd() / FILE_NAME, settings, gone)


def tell_of_stale_settings(before: Mapping[str, SettingValue]) -> None:
    """After a removal: settings of this folder's file that were those of the deployment."""
    from cloudtrain.infrastructure.settings_file import settings_in
    from cloudtrain.settings import FILE_NAME

    found = settings_in(Path.cwd() / FILE_NAME, before)
    if found:
        print_message(
            f"{FILE_NAME} still has its settings: {', '.join(found)}; infra up writes them anew"
        )


def write_settings(edit: SettingsEdit, *, yes: bool) -> None:
    """Show what would change in the file and write it. A no leaves the file, and is no error: the
    account is ready.
    """
    if edit.is_empty:
        return
    print_message(f"\n{edit.path.name}:")
    for line in edit.diff():
        print_message(f"  {line}")
    try:
        confirm(f"Write this to {edit.path}?", yes=yes)
    except CloudtrainError:
        print_message("  not written")
        return
    edit.write()
    print_message("  written")
