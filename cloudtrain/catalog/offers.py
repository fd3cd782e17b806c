"""Machines of the clouds with regional prices, from the tables here, which a refresh renews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cloudtrain.catalog import (
    PROVIDERS,
    Instance,
    all_gpu_names,
    gpu_names,
    home_region,
    instances,
    names_of,
)
from cloudtrain.catalog.machines import find_instance
from cloudtrain.catalog.price_tables import REGION_NAME, listed_regions
from cloudtrain.catalog.pricing import Price, RegionalPrices, user_prices
from cloudtrain.catalog.regional_prices import price_in_another_region, regional_prices
from cloudtrain.errors import SpecError, UsageError, did_you_mean
from cloudtrain.settings import Settings

ALL = "all"
"""Value of `region` for all regions with a known price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOffer:
    """Instance type and its price in one region."""

    machine: Instance
    region: str
    """Region of the price, or of the machine if no price is known."""
    price: Price | None
    """On-demand price; None if unknown, which does not mean free."""
    spot_usd_per_hour: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; unknown values are null."""
        row = self.machine
        price = self.price

        document: dict[str, Any] = {
            "provider": row.provider,
            "instance_type": row.instance_type,
            "gpu": row.gpu,
            "gpus": row.gpus,
            "gpu_memory_gib": row.gpu_memory_gib,
            "vcpus": row.vcpus,
            "memory_gib": row.memory_gib,
            "network": row.network or None,
            "region": self.region,
            "usd_per_hour": None,
            "spot_usd_per_hour": self.spot_usd_per_hour,
            "price_as_of": None,
            "price_source": None,
        }
        if price:
            document["usd_per_hour"] = price.usd
            document["price_as_of"] = price.as_of or None
            document["price_source"] = price.source

        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Filters of machines; None or empty for no filter."""

    gpu: str = ""
    """GPU as in a spec, in any case."""
    gpus: int | None = None
    provider: str = ""
    region: str = ""


def machine_offers(settings: Settings, filters: Filters) -> list[MachineOffer]:
    """Return the matching machines with GPUs by price, without network; unknown prices last.

    Without a region each machine has the price of the settings' region, or else of a region with a
    known price. Raise UsageError for an unknown name or region, SpecError for a bad price table.
    """
    gpu_name = _gpu_name(filters.gpu)
    rows = []
    for provider in cloud_names(filters.provider):
        for row in instances(provider):
            if not row.gpus or filters.gpus not in (None, row.gpus):
                continue
            if not gpu_name or gpu_name in names_of(row):
                rows.append(row)

    return sorted(_priced(rows, filters.region, settings), key=_by_price)


def _priced(rows: Sequence[Instance], region: str, settings: Settings) -> list[MachineOffer]:
    """Return each machine in these regions. Raise UsageError for a region without known prices."""
    offers_found: list[MachineOffer] = []
    all_regions: set[str] = set()
    for provider in PROVIDERS:
        provider_rows = [row for row in rows if row.provider == provider]
        regions = known_regions(provider, settings)
        all_regions.update(regions)

        if not region:
            home = _market(provider, own_region(provider, settings), settings)
            for row in provider_rows:
                offers_found.append(_offer(row, home) or _known_elsewhere(row, home, settings))

            continue

        if region != ALL:
            regions = tuple(name for name in regions if name == region)

        markets = [_market(provider, name, settings) for name in regions]
        for row in provider_rows:
            candidates = [_offer(row, market) for market in markets]
            known_offers = [offer for offer in candidates if offer is not None]
            offers_found += known_offers or _unknown(row, markets)

    if region and region != ALL and region not in all_regions:
        hint = f"cloudtrain gpus --refresh --region {region} reads the cloud's price list"
        raise UsageError(
            f"no price in {region!r} is known; prices are known in {_listed(all_regions)}",
            hint=hint,
        )

    return offers_found


def _listed(regions: set[str]) -> str:
    shown = sorted(regions)
    if len(shown) > 12:
        return f"{len(shown)} others: cloudtrain gpus --region all"

    return ", ".join(shown)


def _market(provider: str, region: str, settings: Settings) -> RegionalPrices:
    """Return the prices in force in a region. Raise SpecError if a price table cannot be read."""
    offers_found = regional_prices(provider, region, settings)
    if offers_found.problems:
        raise SpecError(
            [issue.at(settings.origins.get(issue.field, "")) for issue in offers_found.problems]
        )

    return offers_found


def own_region(provider: str, settings: Settings) -> str:
    """Return the region of the settings, or else of the table."""
    region: str = reader(provider).own_region(settings)
    return region or home_region(provider)


def reader(provider: str) -> Any:
    """Return the module that reads the price list of a provider."""
    return import_module(f"cloudtrain.providers.{provider}.price_list")


def is_region(provider: str, name: str) -> bool:
    """Return True for the form of a provider's region names, which become file names."""
    return bool(reader(provider).REGION.fullmatch(name) and REGION_NAME.fullmatch(name))


def known_regions(provider: str, settings: Settings) -> tuple[str, ...]:
    """Return the regions with known prices, from our table, the user's and stored price lists."""
    shipped = {row.region for row in instances(provider)}
    table, _ = user_prices(settings.get("prices"))
    provider_rows = {region for name, region in table if region and find_instance(provider, name)}

    return tuple(
        sorted(shipped | provider_rows | {*listed_regions(settings.get("data_dir"), provider)})
    )


def _offer(row: Instance, market: RegionalPrices) -> MachineOffer | None:
    price = market.price_of(row.instance_type)
    spot = market.spot.get(row.instance_type)

    if not price:
        return None

    return MachineOffer(
        machine=row,
        region=market.region,
        price=price,
        spot_usd_per_hour=spot,
    )


def _known_elsewhere(row: Instance, home: RegionalPrices, settings: Settings) -> MachineOffer:
    market = price_in_another_region(row.instance_type, home, settings)
    elsewhere = None
    if market:
        elsewhere = _offer(row, market)

    return elsewhere or MachineOffer(machine=row, region=home.region, price=None)


def _unknown(row: Instance, markets: Sequence[RegionalPrices]) -> list[MachineOffer]:
    return [MachineOffer(machine=row, region=offer.region, price=None) for offer in markets[:1]]


def cloud_names(name: str) -> Sequence[str]:
    """Return the clouds with a machine table, or only the named one. May raise UsageError."""
    if name and name not in PROVIDERS:
        raise UsageError(
            f"no table of machines is of {name!r}", hint=f"one of: {', '.join(PROVIDERS)}"
        )

    if not name:
        return PROVIDERS

    return [name]


def _gpu_name(text: str) -> str:
    """Return the GPU as spelled in the tables. Raise UsageError with similar names."""
    spelling = {_plain(name): name for name in all_gpu_names()}
    if text and _plain(text) not in spelling:
        names = ", ".join(name for name in gpu_names() if "-" not in name)
        raise UsageError(
            f"no machine has a GPU {text!r}{did_you_mean(text, gpu_names())}",
            hint=f"there are: {names}",
        )

    if not text:
        return ""

    return spelling.get(_plain(text), "")


def _plain(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _by_price(offer: MachineOffer) -> tuple[bool, float, str, str]:
    usd = offer.price.usd if offer.price else None
    return usd is None, usd or 0.0, offer.machine.instance_type, offer.region
