"""The command `gpus`: machines with GPUs of both clouds, and their prices."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.machine_view import offers_table
from cloudtrain.cli.options import complete_providers, data_dir, json_option
from cloudtrain.cli.output import count, print_json, print_message, print_output
from cloudtrain.errors import UsageError
from cloudtrain.settings import Settings, load_settings
from cloudtrain.submission.machines import ORDERS, Filters, machine_offers
from cloudtrain.submission.price_refresh import refresh_prices
from cloudtrain.units import parse_money, parse_size

if TYPE_CHECKING:
    from cloudtrain.submission.machines import MachineOffer
    from cloudtrain.submission.price_refresh import Refreshed

SPOT_NOTE = (
    "SPOT is Azure's price at low priority; SageMaker's spot has no price list: up to 90 % less,"
    " AWS says"
)


@click.command(
    "gpus",
    epilog="""\b
Examples:
  cloudtrain gpus A100:8                   machines with 8 A100, the cheapest first
  cloudtrain gpus --min-memory 40 --max-price 5
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
    "--min-memory", metavar="SIZE", help="Minimum memory of one GPU, in GB: 40, or 80 GiB."
)
@click.option(
    "--max-price",
    metavar="USD",
    help="Maximum US dollars per hour of one machine; excludes unknown prices.",
)
@click.option(
    "--sort",
    type=click.Choice(ORDERS),
    default="price",
    show_default=True,
    help="Order of the machines.",
)
@click.option(
    "--refresh", is_flag=True, help="Read the clouds' public price lists first; needs no login."
)
@json_option
@data_dir
def gpus_command(
    folder: str | None,
    /,
    gpu: str,
    min_memory: str | None,
    max_price: str | None,
    sort: str,
    refresh: bool,
    as_json: bool,
    **where: str,
) -> None:
    """Show machines with GPUs of both clouds, and their prices.

    The tables on this machine have GPU, memory, network, price and its age. A price is for the
    region of your settings if it is known, else for the region in the table. Plans use the same
    tables: your own (setting `prices`) first, then prices that --refresh has read.
    """
    name, gpus = _gpu_and_count(gpu)
    filters = Filters(
        gpu=name,
        gpus=gpus,
        **where,
        min_memory_bytes=_amount(min_memory, "--min-memory", parse_size, "GB"),
        max_usd_per_hour=_amount(max_price, "--max-price", parse_money, "USD"),
    )
    settings = load_settings(Path.cwd(), {"data_dir": folder})
    read = (
        refresh_prices(settings, filters.provider, filters.region, print_message) if refresh else []
    )
    offers = machine_offers(settings, filters, sort)
    if as_json:
        print_json({"machines": [offer.to_json() for offer in offers], **_refreshed_json(read)})
        return
    for refreshed in read:
        print_message(_refreshed_text(refreshed))
    if not offers:
        print_message(_none_passed(settings, filters))
        return
    print_output(offers_table(offers, time.time()))
    if any(offer.spot_usd_per_hour for offer in offers):
        print_message(SPOT_NOTE)


def _none_passed(settings: Settings, filters: Filters) -> str:
    """Say that no machine passes, and what each filter leaves out."""
    fewer = {
        f"a count other than {filters.gpus}": replace(filters, gpus=None),
        "no --min-memory": replace(filters, min_memory_bytes=None),
        "no --max-price": replace(filters, max_usd_per_hour=None),
        "no --provider": replace(filters, provider=""),
    }
    lines = ["no machine passes all of these filters"]
    for change, without in fewer.items():
        offers = machine_offers(settings, without) if without != filters else []
        if offers:
            first = _name_and_price(offers[0])
            lines.append(f"  with {change}: {count(len(offers), 'machine')}, first {first}")
    return "\n".join(lines)


def _name_and_price(offer: MachineOffer) -> str:
    price = f"{offer.price.usd:.2f} USD/h" if offer.price else "price unknown"
    return f"{offer.machine.instance_type} ({price})"


def _gpu_and_count(text: str) -> tuple[str, int | None]:
    """Split `A100:8`. Raise UsageError for an invalid count."""
    name, colon, number = text.partition(":")
    if colon and not re.fullmatch(r"[1-9]\d{0,3}", number):
        raise UsageError(f"{text!r}: {number!r} is not a number of GPUs", hint="such as A100:8")
    return name, int(number) if colon else None


def _amount(text: str | None, option: str, parse: Any, unit: str) -> float | None:
    """Parse a quantity whose unit is optional. UsageError names the option."""
    if text is None:
        return None
    try:
        return float(
            parse(f"{text} {unit}" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text.strip()) else text)
        )
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _refreshed_text(read: Refreshed) -> str:
    where = read.regions[0] if len(read.regions) == 1 else count(len(read.regions), "region")
    odd = (
        f"; {count(read.left_out, 'machine')} without a usable price left out"
        if read.left_out
        else ""
    )
    return f"{read.provider}: {count(read.prices, 'price')} of {where} read and stored{odd}"


def _refreshed_json(read: list[Refreshed]) -> dict[str, Any]:
    if not read:
        return {}
    rows = [
        {
            "provider": provider.provider,
            "regions": list(provider.regions),
            "prices": provider.prices,
            "left_out": provider.left_out,
        }
        for provider in read
    ]
    return {"refreshed": rows}
