"""The command `cost`: what runs in clouds have cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from cloudtrain.api.costs import COST_FIELDS, GROUPS, costs, totals
from cloudtrain.api.lookup import import_remote_runs
from cloudtrain.api.selected_runs import RunFilter
from cloudtrain.cli.csv_table import csv_table
from cloudtrain.cli.options import (
    data_dir,
    json_option,
    parse_since,
    profile_option,
    provider_option,
)
from cloudtrain.cli.output import count, print_json, print_message, print_output, table
from cloudtrain.cli.terminal import one_line, write_csv
from cloudtrain.units import format_duration

COLUMNS = (
    "run",
    "owner",
    "state",
    "machine",
    "nodes",
    "spot",
    "billed_seconds",
    "usd",
    "usd_per_hour",
    "price_date",
)
"""Fields of a run on a terminal."""


@click.command("cost", epilog="Example:\n\n  cloudtrain cost --by month --since 2026-01-01")
@click.option("--by", type=click.Choice(GROUPS), help="Sums by these; default: every run.")
@click.option("--since", metavar="T", help="Only runs of the last 30d, or after 2026-11-01.")
@provider_option
@profile_option
@click.option("--csv", "as_csv", is_flag=True, help="Print only CSV on stdout.")
@json_option
@data_dir
def cost_command(
    folder: str | None,
    /,
    by: str | None,
    since: str | None,
    provider: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show what runs in clouds have cost, at list price: billed time, price, spot, what still runs.

    With --provider aws or azure it includes runs of other machines, by their tags. Removed runs
    count. The cloud's invoice decides: discounts, storage and transfers are not in it. Azure bills
    machines, not jobs: the cost is an estimate, on spot machines too high.
    """
    only = RunFilter()
    if since is not None:
        only = replace(only, since=parse_since(since))
    if provider is not None:
        import_remote_runs(provider, data_dir=folder)

    rows = costs(data_dir=folder, provider=provider, only=only)
    shown: Sequence[Mapping[str, Any]] = rows
    if by is not None:
        shown = totals(rows, by)

    fields = list(shown[0]) if shown else list(COST_FIELDS)
    if as_json:
        print_json(shown)
    elif as_csv:
        write_csv(csv_table([fields, *([row[field] for field in fields] for row in shown)]))
    elif not rows:
        print_message("no runs in a cloud; runs on this machine cost nothing")
    else:
        columns = fields if by else COLUMNS
        header = [field.upper().replace("_", " ") for field in columns]
        lines = [[_cell(field, row[field]) for field in columns] for row in shown]
        print_output(table(lines, header))
        _print_total(rows)


def _cell(field: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if field == "billed_seconds":
        return format_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"

    return one_line(str(value))


def _print_total(rows: Sequence[Mapping[str, Any]]) -> None:
    (total,) = totals(rows)
    print_message(f"{total['usd']:.2f} USD at list price for {count(total['runs'], 'run')}")
    if total["unknown"]:
        print_message(f"not in it: {count(total['unknown'], 'run')} of unknown cost")
    if total["running"]:
        cap = _cell("cap_usd", total["cap_usd"])
        print_message(
            f"not in it: {total['running']} not ended, about {total['usd_so_far']:.2f} USD so far,"
            f" at the end at most: {cap} USD"
        )
