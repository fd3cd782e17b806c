"""Notes of a plan: the choice of the machine and cheaper ones, limits of a rehearsal. No network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.catalog import PROVIDERS, Instance, home_region, instances
from cloudtrain.catalog.machines import architecture_by_name, find_instance, names_of
from cloudtrain.catalog.pricing import RegionalPrices, prices_in_force
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.selection import PlannedImage
from cloudtrain.planning.target import CloudConfig
from cloudtrain.settings import Settings, variable_of

if TYPE_CHECKING:
    from cloudtrain.spec.model import JobSpec


def regional_prices(provider: str, region: str, settings: Settings) -> RegionalPrices:
    """Return the prices in force in a region, by the settings' tables."""
    return prices_in_force(provider, region, settings.get("prices"), settings.get("data_dir"))


def region_of_settings(provider: str, settings: Settings) -> str:
    """Return the region for prices: from the settings, or else from the table."""
    return settings.get(f"{provider}.{declaration_of(provider).region_setting}") or home_region(
        provider
    )


def machine_choice(
    settings: Settings,
    spec: JobSpec,
    types: Sequence[str],
    gpus: int,
    local_prices: RegionalPrices,
) -> MachineChoice | None:
    """Explain the first of `types` and list cheaper machines; None for a cluster's machines."""
    if not types:
        return None

    resources = spec.resources
    named = bool(resources.instance.get(local_prices.provider))
    request = Wanted(
        nodes=resources.nodes,
        gpus=gpus,
        models=tuple(resources.gpu),
        named=named,
    )
    other_prices = [
        regional_prices(name, region_of_settings(name, settings), settings)
        for name in PROVIDERS
        if name != local_prices.provider
    ]
    choice = explain_choice(request, types, local_prices, other_prices)
    if local_prices.price_of(*types):
        return choice

    unpriced = [*local_prices.unpriced(*types), types[0]][0]
    return replace(choice, elsewhere=_elsewhere(unpriced, local_prices, settings))


def _elsewhere(
    instance_type: str,
    local_prices: RegionalPrices,
    settings: Settings,
) -> Offer | None:
    """Return an offer of the same machine in a region where its price is known."""
    row = find_instance(local_prices.provider, instance_type)
    market = price_in_another_region(instance_type, local_prices, settings) if row else None
    return offer(row, market) if row and market else None


def price_in_another_region(
    instance_type: str,
    local_prices: RegionalPrices,
    settings: Settings,
) -> RegionalPrices | None:
    """Return prices of another region that knows this type; None if there is no such region."""
    # imported late: most prices are known in their own region
    from cloudtrain.catalog.price_tables import listed_regions

    row = find_instance(local_prices.provider, instance_type)
    shipped = (row.region,) if row else ()
    for region in (*shipped, *listed_regions(settings.get("data_dir"), local_prices.provider)):
        market = local_prices
        if region != local_prices.region:
            market = regional_prices(local_prices.provider, region, settings)
        if market.price_of(instance_type) is not None:
            return market

    return None


CHEAPER = 0.95
"""Price ratio below which a machine counts as cheaper. Tables are not more exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """An instance type with its on-demand price in one region."""

    provider: str
    instance_type: str
    gpu: str
    """`A100-80GB`; empty without GPUs."""
    gpus: int
    region: str
    usd_per_hour: float
    """US dollars per hour of one machine."""
    as_of: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineChoice:
    """Reason for a machine, and cheaper ones."""

    reason: str
    cheaper: tuple[Offer, ...] = ()
    """The cheapest matching offer of each provider, the plan's own first."""
    elsewhere: Offer | None = None
    """Offer in another region if the price in the plan's region is unknown."""


class Wanted(NamedTuple):
    """Machine requirements of a spec."""

    nodes: int
    gpus: int
    """Per node."""
    models: tuple[str, ...] = ()
    """GPU models in order of preference; empty for any."""
    named: bool = False
    """True if the spec names instance types."""


def explain_choice(
    need: Wanted,
    types: Sequence[str],
    market: RegionalPrices,
    other_markets: Sequence[RegionalPrices] = (),
) -> MachineChoice:
    """Return the reason for the first of `types`, and cheaper machines of all markets."""
    reason = _reason(need, types, market)
    shown = find_instance(market.provider, types[0])
    price = market.price_of(types[0])
    if shown is None or price is None:
        return MachineChoice(reason=reason)

    offers = []
    for candidate in (market, *other_markets):
        offer = _cheaper(need, shown, price.usd * CHEAPER, candidate)
        if offer:
            offers.append(offer)

    return MachineChoice(reason=reason, cheaper=tuple(offers))


def _reason(need: Wanted, types: Sequence[str], market: RegionalPrices) -> str:
    if need.named:
        return "the first in the spec" if len(types) > 1 else "named in the spec"
    if not need.gpus:
        return "the default for a job without GPUs"

    model = next(
        (name for name in need.models if _has(find_instance(market.provider, types[0]), name)), ""
    )
    need_words = (
        f"{need.gpus} x {model}" if model else f"{need.gpus} GPU{'s' if need.gpus > 1 else ''}"
    )
    rows = [
        row
        for row in instances(market.provider)
        if row.gpus == need.gpus and (not model or _has(row, model))
    ]
    need_words += ", the first of the spec's models that it has" if len(need.models) > 1 else ""
    if len(rows) == 1:
        return f"the only one of {market.provider} with {need_words}"
    if all(row.usd_per_hour is None for row in rows):
        return f"the smallest of {market.provider} with {need_words}, whose prices are not known"

    return f"the cheapest of {market.provider} with {need_words}; by the prices that come with cloudtrain"


def _cheaper(need: Wanted, shown: Instance, limit: float, market: RegionalPrices) -> Offer | None:
    """Return a provider's cheapest machine up to a price, by GPU preference."""
    rows = [
        row
        for row in instances(market.provider)
        if row.instance_type != shown.instance_type
        and _satisfies(row, need, shown)
        and _architecture(row) == _architecture(shown)  # another processor would need another image
    ]
    for model in need.models or ("",):
        offers = (offer(row, market) for row in rows if not model or need.named or _has(row, model))
        cheap = [candidate for candidate in offers if candidate and candidate.usd_per_hour <= limit]
        if cheap:
            return min(cheap, key=lambda candidate: candidate.usd_per_hour)

    return None


def offer(row: Instance, market: RegionalPrices) -> Offer | None:
    """Return a machine with its price in a region, or None if the price is unknown."""
    price = market.price_of(row.instance_type)
    if price is None:
        return None

    return Offer(
        provider=row.provider,
        instance_type=row.instance_type,
        gpu=names_of(row)[-1] if row.gpu else "",
        gpus=row.gpus,
        region=market.region,
        usd_per_hour=price.usd,
        as_of=price.as_of,
        source=price.source,
    )


def _satisfies(row: Instance, need: Wanted, shown: Instance) -> bool:
    """Return whether a machine could replace the shown one.

    For instance types in the spec, its GPU, cores and memory count; otherwise the spec's fields.
    """
    if row.gpus != need.gpus or row.gpus != shown.gpus:
        return False
    if need.nodes > 1 and _is_fast(shown) and not _is_fast(row):
        return False
    if not need.gpus:
        return row.vcpus >= shown.vcpus and row.memory_gib >= shown.memory_gib
    if need.named:
        return row.gpu == shown.gpu and (row.gpu_memory_gib or 0) >= (shown.gpu_memory_gib or 0)

    return not need.models or any(_has(row, name) for name in need.models)


def _architecture(row: Instance) -> str:
    return architecture_by_name(row.provider, row.instance_type)


def _is_fast(row: Instance) -> bool:
    return row.network in ("efa", "infiniband")


def _has(row: Instance | None, model: str) -> bool:
    return row is not None and model in names_of(row)


_BEFORE_TURING = ("V100", "P100", "P40", "P4", "K80", "M60")
"""GPUs below compute capability 7.5, which CUDA 13 does not support.

Source: NVIDIA, CUDA 13.0 release notes.
"""


def cloud_warnings(plan: Plan, notes: Iterable[str]) -> list[Issue]:
    """Return the warnings that both clouds share, with the cloud's own `notes`."""
    issues = []
    if match := re.search(r"-py3([6-9])(?!\d)", plan.target.image_address):
        message = f"has Python 3.{match[1]}, by its name; the launcher needs 3.10 or newer"
        issues = [plan.located(warning(message, "name a newer image", path=("image",)))]

    messages = [*rehearsal_notes(plan), *notes, *image_notes(plan), *idle_note(plan)]
    return [*issues, *map(warning, messages)]


def image_notes(plan: Plan) -> list[str]:
    """Return what our image lacks for the instance types; empty for an image of the spec."""
    recipe = plan.target.image.recipe if plan.target.image else None
    types = plan.target.instances
    if recipe is None or recipe.kind != "cuda":
        return []

    args = dict(arg.partition("=")[::2] for arg in recipe.args)
    if args.get("TORCH", "cuda") != "cuda":
        return []
    for name in types:
        row = find_instance(plan.target.provider, name)
        if row and row.gpu in _BEFORE_TURING:
            return [
                f"{name} ({row.gpu}) is older than what our image's torch has code for (CUDA 13: compute"
                " capability 7.5 and later): name an image with CUDA 12 or older, or build your"
                " own: image: {build: docker/Dockerfile}"
            ]

    return []


def idle_note(plan: Plan) -> list[str]:
    """Return a note if more GPUs per node are paid for than processes are started."""
    if plan.spec.launcher == "none":  # a command drives all of them, as it likes
        return []
    idle = plan.gpus - plan.processes
    per_node = f"{idle} of {plan.gpus} GPUs per node"
    return [f"{per_node} stay idle unless a process drives several"] if idle > 0 else []


def rehearsal_notes(plan: Plan) -> list[str]:
    """Describe how a rehearsal, or a plan with placeholders, differs from the real job."""
    if not plan.is_rehearsal:
        return _preview_notes(plan)

    config = plan.target.config_as(CloudConfig)
    spec = plan.spec
    name = plan.target.provider
    host_image = plan.host.image_address
    is_same_image = host_image == plan.target.image_address or _same_recipe(
        plan.host.image, plan.target.image
    )

    notes = [] if is_same_image else [f"rehearsed {_environment(host_image)}, not in the image"]
    if config.placeholders:
        missing = ", ".join(config.placeholders)
        notes.append(f"{missing} not set: rehearsed with a placeholder; {name} will ask for it")

    notes += [f"with --provider {name} it will be refused: {message}" for message in config.unpaid]
    host_providers = {plan.host.provider, *plan.host.declaration.fallback_providers}

    local_inputs = [name for name, item in spec.inputs.items() if host_providers & set(item.uri)]
    if local_inputs:
        how = "mounted read-only" if host_image else "what the job writes there stays"
        notes.append(f"inputs {', '.join(local_inputs)} are the local folders themselves: {how}")
    if spec.checkpoints.uri:
        notes.append(f"checkpoints stay here: {spec.checkpoints.uri} is neither read nor written")

    return notes


def _preview_notes(plan: Plan) -> list[str]:
    """List missing settings of the account, and obstacles to the real job."""
    missing = plan.target.placeholders
    name = plan.target.provider
    if not missing:
        return []

    variable = variable_of(missing[0])
    notes = [
        f"{', '.join(missing)} not set, shown as placeholders: set these before you submit, in"
        f" cloudtrain.toml or {variable}{', …' if missing[1:] else ''}"
    ]
    return notes + [
        f"with --provider {name} it will be refused: {message}"
        for message in plan.target.config_as(CloudConfig).unpaid
    ]


def _same_recipe(first: PlannedImage | None, second: PlannedImage | None) -> bool:
    """Return True if two images have the same files and arguments, for any architecture."""
    recipes = [image.recipe for image in (first, second) if image and image.recipe]
    if len(recipes) != 2:
        return False
    return len({(recipe.dockerfile, recipe.kind, recipe.args) for recipe in recipes}) == 1


def _environment(host_image: str) -> str:
    return f"in {host_image}" if host_image else "with this machine's Python and torch"
