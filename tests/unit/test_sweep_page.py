"""The page of a sweep in a browser: readable by day and by night, on a phone too, whatever its
settings are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.pages.sweep_page import page
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Uniform
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.optuna_studies import importance
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.sweep import Sweep
from tests.support.browser import Browser
from tests.support.function_trials import Values, ended_sweep, sweep_of
from tests.support.page_checks import looks

LONG = "validation/perplexity_of_the_model_after_every_epoch_by_all_ranks"
MANY: dict[str, Dimension] = {
    f"args.model.setting-{n}": (
        Choice(("a long choice of text", "z" * 40)),
        Integers(1, 10**n, True),
        Uniform(-1, 1),
    )[n % 3]
    for n in range(12)
}


def size(value: float) -> float:
    return abs(float(value)) % 1


def tiny(values: Values, report: int) -> float:
    return 0.912 + 1e-6 * size(float(values["lr"]) * 999) / report


def huge(values: Values, report: int) -> float:
    parts = [size(value) for value in values.values() if isinstance(value, float)]
    return math.nan if parts[0] > 0.9 else 1e9 * sum(parts) / report


CASES: Mapping[str, tuple[dict[str, Dimension], dict[str, Any], Callable[[Values, int], float]]] = {
    "values that differ in the seventh digit": (
        {"lr": Uniform(0.1, 0.2, True)},
        {"last_report": 9},
        tiny,
    ),
    "long names, many settings, many rungs": (
        MANY,
        {
            "metric": LONG,
            "rungs": (1, 2, 4, 8, 16, 32),
            "last_report": 64,
            "trial_cap": Caps(usd=2.0),
        },
        huge,
    ),
    "more choices than there is room for": (
        {"lr": Uniform(0, 1), "many": Choice(tuple(f"c{n}" for n in range(30)))},
        {"rungs": (1, 3), "last_report": 9, "trials": 12},  # fANOVA of thirty choices takes long
        tiny,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_on_the_page_is_pale_cut_off_or_hidden(
    tmp_path: Path, browser: Browser, case: str
) -> None:
    space, options, function = CASES[case]
    definition = sweep_of(space, sampler="random", parallel=4, **{"trials": 40, **options})
    folder = ended_sweep(tmp_path, definition, function, lambda run: run.endswith("5"))
    status = Sweep(folder).status()
    file = tmp_path / "page.html"
    file.write_text(page(status, importance(status)))
    assert looks(browser, file) == {}


def test_a_page_without_a_trial_is_as_readable(tmp_path: Path, browser: Browser) -> None:
    sweep_state = SweepState.new(sweep_of({"lr": Uniform(0, 1)}, trials=3))
    (tmp_path / "page.html").write_text(page(sweep_state, importance(sweep_state)))
    assert looks(browser, tmp_path / "page.html") == {}
