"""The command `gpus`: machines with GPUs of both clouds, and their prices."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.api.price_refresh import refresh_prices
from cloudtrain.catalog.offers import Filters, machine_offers
from cloudtrain.cli.machine_view import offers_table
from cloudtrain.cli.options import complete_providers, data_dir, json_option
from cloudtrain.cli.output import count, print_json, print_message, print_output
from cloudtrain.cli.terminal import columns
from cloudtrain.errors import UsageError
from cloudtrain.settings import load_settings

if TYPE_CHECKING:
    from cloudtrain.api.price_refresh import Refreshed

SPOT_NOTE = (
    "SPOT is what Azure's spot machines cost when it was read, and varies; SageMaker's spot has no"
    " price list: up to 90 % less, AWS says"
)


@click.command(
    "gpus",
    epilog="""\b
Examples:
  cloudtrain gpus A100:8                   machines with 8 A100, the cheapest first
  cloudtrain gpus H100 --region all        in every region with a known price
  cloudtrain gpus --refresh --region eu-west-1""",
)
@click.argument("gpu", metavar="[GPU[:COUNT]]", default="")
@click.option(
    "--provider",
    metavar="NAME",
    default="",
    shell_complete=complete_providers,
    help="Only aws, or azure.",
)
@click.option("--region", metavar="REGION", default="", help="Prices of this region, or of all.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Read the clouds' price lists first; AWS's needs credentials, Azure's no login.",
)
@json_option
@data_dir
def gpus_command(
    folder: str | None,
    /,
    gpu: str,
    refresh: bool,
    as_json: bool,
    **where: str,
) -> None:
    """Show machines with GPUs of both clouds, the cheapest first.

    The tables on this machine have GPU, memory, network, price and its age. A price is for the
    region of your settings if it is known, else for the region in the table. Plans use the same
    tables: your own (setting `prices`) first, then prices that --refresh has read.
    """
    name, gpus = _gpu_and_count(gpu)
    filters = Filters(gpu=name, gpus=gpus, **where)
    settings = load_settings(Path.cwd(), {"data_dir": folder})
    read = []
    if refresh:
        read = refresh_prices(settings, filters.provider, filters.region, print_message)

    offers = machine_offers(settings, filters)
    if as_json:
        print_json({"machines": [offer.to_json() for offer in offers], **_refreshed_json(read)})
        return
    for refreshed in read:
        print_message(_refreshed_text(refreshed))
    if not offers:
        print_message("no machine passes all of these filters")
        return
    text, left_out = offers_table(offers, time.time(), columns(sys.stdout))
    print_output(text)
    if left_out:
        print_message(f"left out on this terminal: {', '.join(left_out)}; --json has all")
    if "SPOT" not in left_out and any(offer.spot_usd_per_hour for offer in offers):
        print_message(SPOT_NOTE)


def _gpu_and_count(text: str) -> tuple[str, int | None]:
    """Split `A100:8`. Raise UsageError for an invalid count."""
    name, colon, number = text.partition(":")
    if colon and not re.fullmatch(r"[1-9]\d{0,3}", number):
        raise UsageError(f"{text!r}: {number!r} is not a number of GPUs", hint="such as A100:8")
    if not colon:
        return name, None

    return name, int(number)


def _refreshed_text(read: Refreshed) -> str:
    if len(read.regions) == 1:
        where = read.regions[0]
    else:
        where = count(len(read.regions), "region")

    odd = ""
    if read.left_out:
        odd = f"; {count(read.left_out, 'machine')} without a usable price left out"

    return f"{read.provider}: {count(read.prices, 'price')} of {where} read and stored{odd}"


def _refreshed_json(read: list[Refreshed]) -> dict[str, Any]:
    if not read:
        return {}
    return {"refreshed": [asdict(refreshed) for refreshed in read]}
