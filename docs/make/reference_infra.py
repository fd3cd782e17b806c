"""The reference of `cloudtrain infra`: what can be chosen in each cloud, and the table of what
costs money at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cloudtrain.infrastructure.idle_costs import Price, prices
from cloudtrain.infrastructure.parameters import Parameter
from cloudtrain.providers.aws.infra import AwsInfrastructure
from cloudtrain.providers.aws.infra_parameters import kind_of
from cloudtrain.providers.azure.infra.deployment import AzureInfrastructure
from cloudtrain.providers.azure.infra.kinds import words_of
from reference_page import page, table


def infra_page() -> str:
    """Both clouds, one after the other."""
    parts = [
        "`cloudtrain infra up --set KEY=VALUE`, as often as needed, chooses what an account gets; a"
        " key that is not given keeps the value that the deployment has, else its default."
        " `cloudtrain infra parameters` prints the same. How to set an account up:"
        " [AWS](../guides/set-up-aws.md), [Azure](../guides/set-up-azure.md).\n"
    ]
    parts += _cloud("aws", "AWS", "us-east-1", AwsInfrastructure.parameters, kind_of)
    parts += _cloud("azure", "Azure", "East US", AzureInfrastructure.parameters, words_of)
    return page("What infra can choose", "\n".join(parts))


def _cloud(
    name: str, title: str, region: str, parameters: Iterable[Parameter], words: Callable[[str], str]
) -> list[str]:
    rows = [
        (f"`{each.name}`", f"`{each.default}`", _meaning(each), _idle(each)) for each in parameters
    ]
    costs = [_row(price, words) for price in prices(name).values()]
    return [
        f"## {title}\n",
        table(("key", "default", "meaning", "USD a month idle"), rows),
        (
            f"What costs money while no job runs, by the list prices of {region}. A price is"
            " `assumed` where nobody has read it at its source:\n"
        ),
        table(("what", "USD a month", "how it comes about", "as of"), costs),
    ]


def _meaning(parameter: Parameter) -> str:
    if parameter.choices:
        return (
            f"{parameter.meaning} (one of {', '.join(f'`{each}`' for each in parameter.choices)})"
        )
    has_example = parameter.example and parameter.example != parameter.default
    return parameter.meaning + (f" (such as `{parameter.example}`)" if has_example else "")


def _idle(parameter: Parameter) -> str:
    return (
        ", ".join(f"`{value}`: {usd:.2f}" for value, usd in parameter.idle_usd_per_month.items())
        or "0"
    )


def _row(price: Price, words: Callable[[str], str]) -> tuple[str, str, str, str]:
    assumed = "assumed, " if price.basis == "assumed" else ""
    amount = "what is stored" if price.usd_per_month is None else f"{price.usd_per_month:.2f}"
    what = words(price.type) + (f", {price.tier}" if price.tier else "")
    return what, amount, price.note, f"{assumed}[{price.as_of}]({price.source})"
