"""What parts of a step cost, by windows that left them out."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.diagnosis.counterfactuals import what_parts_cost, what_to_change
from cloudtrain.diagnosis.run_slowness import measuring_override
from cloudtrain.diagnosis.slowness_words import Setup
from cloudtrain.runs.events import Windows


def sentence(**fields: Any) -> str:
    return what_parts_cost(Windows(time=1.0, full=0.1).replace(**fields)).sentence


def test_the_largest_part_comes_first() -> None:
    assert (
        sentence(cached_batch=0.02, no_messages=0.09)
        == "a step takes 100.0 ms: without loading data 80% less, without exchanging gradients 10%"
        " less"
    )
    assert "without exchanging gradients 60% less, without loading data 2% less" in sentence(
        cached_batch=0.098, no_messages=0.04
    )


def test_parts_within_the_noise_are_no_cause() -> None:
    assert "neither data nor gradients cost much" in sentence(
        cached_batch=0.09, no_messages=0.095, neither=0.088
    )
    assert "neither data nor gradients cost much" in sentence()
    assert what_parts_cost(Windows(time=1.0, full=0.1, cached_batch=0.2)).data == 0


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"cached_batch": 0.02, "no_messages": 0.09}, "--workers N"),
        ({"cached_batch": 0.1, "no_messages": 0.04, "message_mb": 50.0}, "--accumulate 4"),
        (
            {"cached_batch": 0.1, "no_messages": 0.002, "message_mb": 0.1},
            "fewer processes (resources.processes",
        ),
        ({"alone_by_rank": {"0": 0.02, "1": 0.08}}, "look at what rank 1 does that others do not"),
        ({"cached_batch": 0.095, "no_messages": 0.09}, ""),
    ],
)
def test_a_measurement_names_the_setting_to_change_where_a_part_costs_much(
    fields: dict[str, Any], change: str
) -> None:
    found = what_to_change(Windows(time=1.0, full=0.1).replace(**fields), Setup(ranks=2))
    assert (change in found) if change else found == ""


def test_a_rank_that_is_slow_by_itself_is_named_before_the_messages_that_wait_for_it() -> None:
    slow = sentence(
        cached_batch=0.1, no_messages=0.05, alone_by_rank={"0": 0.02, "1": 0.08, "2": 0.02}
    )
    assert slow == "rank 1 alone takes longer than the others alone, by 60% of a step"
    alike = sentence(cached_batch=0.1, no_messages=0.05, alone_by_rank={"0": 0.048, "1": 0.05})
    assert "without exchanging gradients 50% less" in alike


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "args.measure=true"),
        ({"args": {"argv": ["--epochs", "2"], "values": {"epochs": 2}}}, "args.measure=true"),
        (
            {"args": {"argv": ["--epochs", "2"], "values": None}},
            'args=["--epochs", "2", "--measure"]',
        ),
        ({"entrypoint": "train.py"}, None),
    ],
)
def test_a_rerun_of_the_trainer_measures(spec: dict[str, Any], expected: str | None) -> None:
    assert measuring_override(spec) == expected
