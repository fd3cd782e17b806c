"""Question and report of a removal: what goes, and how much it holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from cloudtrain.api.removal import Removable, remove
from cloudtrain.cli.output import count, print_json, print_message, print_output, table
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.store import RunStore, sweep_ids
from cloudtrain_wire.sizes import format_size

remove_yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
remove_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would go, remove nothing."
)


def carry_out(
    store: RunStore, things: Sequence[Removable], *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show what goes, ask, and remove it. Raise UsageError without a yes."""
    sizes = [thing.bytes for thing in things]
    total = f"{count(len(things), 'thing')}, {format_size(sum(sizes))}"
    if not as_json:
        rows = [
            (thing.name, thing.kind, format_size(size))
            for thing, size in zip(things, sizes, strict=True)
        ]
        print_output(table(rows, ("NAME", "KIND", "SIZE")))

    removed: Sequence[Removable] = []
    if things and not dry_run:
        _confirm(total, yes=yes)
        removed = remove(store, things)

    print_message(f"{total}; removed {len(removed)} of them")
    if as_json:
        print_json(
            [
                {"kind": thing.kind, "name": thing.name, "bytes": size, "removed": thing in removed}
                for thing, size in zip(things, sizes, strict=True)
            ]
        )


def _confirm(total: str, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"this removes {total}, and there is no terminal to ask on", hint="--yes removes it"
        )
    if not click.confirm(f"Remove {total} from this machine?", err=True):
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
