"""Durations, sizes, money and metric patterns, as people write them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.providers import get_provider
from cloudtrain.spec.fields import FieldErrors
from cloudtrain.spec.inputs import read_metrics
from cloudtrain.units import (
    format_duration,
    format_number,
    parse_duration,
    parse_money,
    parse_size,
)
from cloudtrain_wire.sizes import format_size
from tests.golden.cases import plan_of

# Durations, sizes and money: as people write them, and back.

READ = """
duration: 90 s = 90; 10 min = 600; 6 h = 21600; 1 h 30 min = 5400; 2 d = 172800; 1h30m = 5400
duration: 5 MIN = 300; 1 hour 2 seconds = 3602; 1.5 h = 5400; 0.1 s = 1; 2.5 s = 3
size: 512 MiB = 536870912; 200 GiB = 214748364800; 1 TB = 1000000000000; 1.5kB = 1500
size: 7 b = 7; 1 KIB = 1024
money: 50 USD = 50; $50 = 50; 12.50 usd = 12.5; $ 0.01 = 0.01; 50$ = 50
"""
REFUSED = """
duration: ; 5; h; 6 hodr; -5 s; 1 h 2 h; 1 h,; 5 s!; 1e3 s; ٣ s; 1 month; five min
size: ; 5; GB; 5 gigs; 1 GB 2 MB; -1 GB; 5 PB
money: ; 50; 50 EUR; USD 50; -5 USD; 1,000 USD; 50 USD 1
"""
OUTSIDE = """
duration: 0 s; 0.0 h; 40000 d; HUGE s
size: 0 GB; 0.2 b; 9999999999 TB; HUGE b
money: 0 USD; $0.00; 1000000000 USD; HUGE USD
"""
PARSERS: dict[str, Callable[[str], float]] = {
    "duration": parse_duration,
    "size": parse_size,
    "money": parse_money,
}


def entries(table: str) -> list[tuple[str, str]]:
    """Return the kind and each of its texts."""
    lines = (line.partition(": ") for line in table.strip().splitlines())
    return [(kind, text) for kind, _, texts in lines for text in texts.split("; ")]


@pytest.mark.parametrize(("kind", "text"), entries(READ))
def test_a_quantity_is_read_as_people_write_it(kind: str, text: str) -> None:
    written, _, value = text.rpartition(" = ")
    assert PARSERS[kind](f" {written} ") == float(value)


@pytest.mark.parametrize(("kind", "text"), entries(REFUSED))
def test_a_quantity_that_cannot_be_read_says_how_to_write_it(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        PARSERS[kind](text)


@pytest.mark.parametrize(("kind", "text"), entries(OUTSIDE))
def test_a_quantity_has_bounds(kind: str, text: str) -> None:
    with pytest.raises(
        ValueError, match=r"between 1 s and 30|between 1 byte and 8|below a billion"
    ):
        PARSERS[kind](text.replace("HUGE", "9" * 400))


@given(st.integers(1, 10**9))
def test_what_is_written_of_a_duration_is_read_back_to_its_two_largest_units(seconds: int) -> None:
    back = parse_duration(format_duration(seconds))
    steps = [unit for unit in (86400, 3600, 60, 1) if unit <= seconds]
    precision = steps[min(1, len(steps) - 1)]
    assert back <= seconds < back + precision


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (14, "14 s"),
        (125, "2 min 5 s"),
        (5400, "1 h 30 min"),
        (86401, "1 d"),
        (3601, "1 h"),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (34_000, "34 kB"), (1_200_000_000, "1.2 GB"), (5e15, "5000.0 TB")],
)
def test_a_size_is_written_in_decimal_units(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.text(max_size=30), st.sampled_from([parse_duration, parse_size, parse_money]))
def test_any_text_is_read_as_something_or_refused(text: str, parse: Callable[[str], float]) -> None:
    with suppress(ValueError):
        assert parse(text) > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.07123, "0.07123"),
        (12_345.0, "12.3k"),
        (999_960.0, "1M"),
        (3e14, "3e+14"),
        (1e300, "1e+300"),
    ],
)
def test_a_metric_is_written_with_one_suffix_or_one_exponent(value: float, text: str) -> None:
    assert format_number(value) == text


# `metrics` in job.yaml: accepted expressions, and the definitions that SageMaker gets.


@pytest.mark.parametrize(
    "pattern",
    [
        "Accuracy: ([0-9.]+)",
        r"^epoch \d+ .*loss=(-?\d+\.\d+(?:e-?\d+)?)",
        r"'loss': ([^,}]+)",
        "(?:acc|accuracy)[ :=]+([0-9.]+)",
        "a{1,5}([0-9]{1,20})",
        "x ((?:[0-9]{1,3},?){1,4})",
        r"'loss': ([0-9]+(.|e\-)[0-9]+),?",
    ],
)
def test_ordinary_expressions_are_taken(pattern: str) -> None:
    assert read_metrics({"x": pattern}) == {"x": pattern}


@pytest.mark.parametrize("name", ["train:loss", "average test loss", "sec/step", "a.b-c_1"])
def test_names_of_metrics_are_those_that_the_clouds_accept(name: str) -> None:
    assert read_metrics({name: "([0-9.]+)"}) == {name: "([0-9.]+)"}


@pytest.mark.parametrize(
    ("pattern", "sagemakers"),
    [
        ("Accuracy: ([0-9.]+)", r"\[rank 0\] .*?Accuracy: ([0-9.]+)"),
        ("^loss ([0-9.]+)", r"\[rank 0\] loss ([0-9.]+)"),
        ("a ([0-9])|b", r"\[rank 0\] .*?(?:a ([0-9])|b)"),
    ],
)
def test_sagemaker_looks_at_the_first_ranks_lines(pattern: str, sagemakers: str) -> None:
    plan = plan_of("aws", f"entrypoint: train.py\nmetrics: {json.dumps({'x': pattern})}\n")
    request: Any = get_provider("aws").render(plan).document
    assert request["AlgorithmSpecification"]["MetricDefinitions"] == [
        {"Name": "x", "Regex": sagemakers}
    ]


@given(
    st.sampled_from(["a+", "b*", "[0-9]+", "x", " ", r"\w+", ".*", "(?:ab)+", "c{0,9}"]).flatmap(
        lambda first: st.lists(st.sampled_from([first, "a+", "x", "(?:a|b)", "[ab]+"]), max_size=3)
    )
)
def test_what_is_taken_is_quick_on_a_hostile_line(parts: list[str]) -> None:
    pattern = "".join(parts) + "y([0-9])"
    try:
        read_metrics({"x": pattern})
    except FieldErrors:
        return
    begin = time.process_time()
    re.compile(pattern).search("a" * 60)
    assert time.process_time() - begin < 1, json.dumps(pattern)
