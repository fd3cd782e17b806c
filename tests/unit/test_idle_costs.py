"""Prices of what costs money while no job runs: each with a date and a source, and said to be
assumed where it is.
"""

from __future__ import annotations

import re

import pytest

from cloudtrain.infrastructure.idle_costs import Priced, idle_cost, prices, usd_per_month


@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_every_price_has_a_date_and_a_source(cloud: str) -> None:
    for price in prices(cloud).values():
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", price.as_of), price
        assert price.source.startswith("https://"), price
        assert price.basis in ("public", "assumed"), price
        assert price.note, price


def test_people_are_told_the_date_and_what_is_assumed() -> None:
    notes = [price.cost.note for price in prices("azure").values()]
    assert any(re.search(r"\(20\d\d-\d\d\)$", note) for note in notes)
    for price in prices("azure").values():
        assert price.cost.note.endswith(f"(assumed, {price.as_of})") == (price.basis == "assumed")


def test_a_tier_that_has_no_row_costs_what_all_do_and_what_has_none_costs_nothing() -> None:
    assert idle_cost("aws", "AWS::KMS::Key", "any") == idle_cost("aws", "AWS::KMS::Key")
    assert idle_cost("aws", "AWS::EC2::VPCEndpoint") is None, "a gateway"
    assert idle_cost("aws", "AWS::IAM::Role") is None


def test_several_cost_their_sum_and_one_without_a_price_is_a_mistake() -> None:
    key = Priced("AWS::KMS::Key")
    endpoints = Priced("AWS::EC2::VPCEndpoint", "Interface", 2)
    assert usd_per_month("aws", key, endpoints) == 1.00 + 2 * 14.60
    with pytest.raises(KeyError):
        usd_per_month("aws", Priced("AWS::IAM::Role"))
