"""Question and report of a removal: its things and their sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click

from cloudtrain.api.removal import Removable, remove
from cloudtrain.cli.output import count, print_json, print_message, print_output, table
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.store import RunStore, sweep_ids
from cloudtrain_wire.sizes import format_size

Command = TypeVar("Command", bound=Callable[..., None])


def removal_options(command: Command) -> Command:
    """Add the options of every removal to a command."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would go, remove nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--remote", is_flag=True, help="Also their own folders in the cloud."),
    ):
        command = option(command)

    return command


def carry_out(
    store: RunStore, things: Sequence[Removable], *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show the things, ask, and remove them. Raise UsageError without a yes."""
    rows: list[dict[str, Any]] = []
    for thing in things:
        uri = thing.remote.uri if thing.remote else ""
        sizes = thing.remote_sizes
        row = {"kind": thing.kind, "name": thing.name, "bytes": thing.bytes, "remote": uri}
        rows.append({**row, "remote_files": len(sizes), "remote_bytes": sum(sizes)})

    size = sum(row["bytes"] + row["remote_bytes"] for row in rows)
    total = f"{count(len(things), 'thing')}, {format_size(size)}"
    if not as_json:
        print_output(table(map(_cells, rows), ("NAME", "KIND", "SIZE", "IN THE CLOUD")))

    removed: Sequence[Removable] = []
    if things and not dry_run:
        _confirm(total, yes=yes)
        removed = remove(store, things, print_message)

    print_message(f"{total}; removed {len(removed)} of them")
    if as_json:
        gone = {thing.path.name for thing in removed}
        print_json([{**row, "removed": row["name"] in gone} for row in rows])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    files = f"{count(row['remote_files'], 'file')}, {format_size(row['remote_bytes'])}"
    cloud = f"{files}: {row['remote']}" if row["remote"] else ""
    return (row["name"], row["kind"], format_size(row["bytes"]), cloud)


def _confirm(total: str, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"this removes {total}, and there is no terminal to ask on", hint="--yes removes it"
        )
    if not click.confirm(f"Remove {total}?", err=True):
        raise UsageError("not confirmed", hint="nothing was removed")


def unended_sweeps(store: RunStore) -> set[str]:
    """Return the ids of the sweeps that have not ended, or that cannot be read."""
    sweeps = sweep_ids(store.data_dir)
    if sweeps:  # else nothing of sweeps is loaded
        from cloudtrain.sweeps.sweep import list_sweeps

        for sweep in list_sweeps(data_dir=str(store.data_dir)):
            with suppress(StorageError):
                sweep.status()

            if sweep.has_ended:
                sweeps.discard(sweep.id)

    return sweeps
