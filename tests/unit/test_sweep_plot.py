"""The page of a sweep, and trials in files for other programs."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cloudtrain.pages.chart import HEIGHT, Axis, y_axis
from cloudtrain.pages.sweep_page import page
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Uniform
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.importance import importance
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.sweep import Sweep
from tests.support.function_trials import Values, ended_sweep, learning, sweep_of
from tests.support.in_process import call
from tests.support.page_checks import Browser, looks, parsed

# The page of charts of a sweep, read as a browser would: what it shows, and that it needs nothing
# from elsewhere.

SPACE: dict[str, Dimension] = {
    "lr": Uniform(1e-4, 1e-1, True),
    "batch": Choice(("<b>", 1, True)),
    "layers": Integers(1, 8),
}


def definition_of(space: dict[str, Dimension], **options: object) -> Definition:
    points = {
        "provider": "aws",
        "metric": "val<accuracy>",
        "sampler": "random",
        "trials": 12,
        "parallel": 3,
    }
    return sweep_of(
        space,
        **{**points, "rungs": (1, 3), "last_report": 9, "trial_cap": Caps(usd=2.0), **options},
    )


def by_rate(values: Values, report: int) -> float:
    return math.nan if values["layers"] == 8 else learning(values, report)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A sweep with trials that were pruned, that failed, that never had a number, and that trained
    to their end.
    """
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return ended_sweep(tmp_path, definition_of(SPACE), by_rate, lambda run: run.endswith("t005"))


def titles(drawing: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in drawing.iter("title")]


def test_the_page_is_one_file_that_needs_nothing_else(ended: SweepFolder) -> None:
    result = call("report", "digits-k2x9")
    assert (result.code, Path(result.out.strip()).name) == (0, "digits-k2x9.html"), result.err
    html = Path(result.out.strip()).read_text()
    assert not re.search(r"https?:|<script|<link|@import|url\(| on\w+=", html)
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_the_page_has_every_chart_and_every_trial(ended: SweepFolder) -> None:
    sweep_state = Sweep(ended).status()
    root = parsed(page(sweep_state, importance(sweep_state)))
    drawings = {
        section.findtext("h2"): element
        for section in root.iter("section")
        for element in section.iterfind("div/svg")
    }
    assert [*drawings] == [
        "Objective over trials",
        "Curves",
        "Importance of settings",
    ]
    marks = titles(drawings["Objective over trials"])
    assert [title.partition(":")[0].split(" (")[0] for title in marks] == [
        f"trial {trial.number}, {trial.state}" for trial in sweep_state.trials
    ]
    shapes = {
        path.get("class", "").split()[1]
        for path in drawings["Objective over trials"].iter("path")
        if "mark" in path.get("class", "")
    }
    assert shapes == {"circle", "triangle", "cross"}
    rungs = [path for path in drawings["Curves"].iter("path") if path.get("class") == "rung"]
    assert len(rungs) == 2
    rows = [[cell.text for cell in row.iter("td")] for row in root.iter("tr")][1:]
    assert [row[0] for row in rows] == [str(trial.number) for trial in sweep_state.trials]


def test_nothing_that_a_job_says_becomes_markup(ended: SweepFolder) -> None:
    reason = "</style><script>alert('x')\ud800\x00</script>"
    sweep_state = Sweep(ended).status()
    sweep_state.trials[2].reason = reason
    root = parsed(page(sweep_state, importance(sweep_state)))
    assert "script" not in {element.tag for element in root.iter()}
    assert any(
        "<script>alert('x')\\ud800\\x00</script>" in (cell.text or "") for cell in root.iter("td")
    )


def test_a_sweep_without_a_trial_has_a_page(tmp_path: Path) -> None:
    sweep_state = SweepState.new(definition_of(SPACE))
    root = parsed(page(sweep_state, importance(sweep_state)))
    assert "0 of 12 trials" in (root.findtext("body/p") or "")


def quadratic(important: str) -> Callable[[Values, int], float]:
    return lambda values, _: -((float(values[important]) - 0.5) ** 2) - float(values[important])


def test_the_setting_that_decides_is_the_most_important(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    result = importance(Sweep(sweep_of_three_settings(tmp_path)).status())
    assert next(iter(result.shares)) == "b"
    assert result.shares["b"] > 0.8
    assert result.method.startswith("fANOVA")


def sweep_of_three_settings(folder: Path) -> SweepFolder:
    """Return an ended sweep whose objective depends on the setting b alone."""
    definition = definition_of(
        {"a": Uniform(0, 1), "b": Uniform(0, 1), "c": Choice(("x", "y"))}, rungs=(), trials=30
    )
    return ended_sweep(folder, definition, quadratic("b"))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 1e9), (5, 5), (1, 1 + 1e-12), (-1e308, 1e308)]
)
def test_ticks_lie_on_their_axis_and_differ(low: float, high: float) -> None:
    ticks = Axis("", low, high, 0, 100).ticks()
    assert 1 <= len(ticks) <= 12
    assert all(0 <= position <= 100 for position, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_a_value_after_a_divergence_does_not_flatten_the_others() -> None:
    axis = y_axis("", [0.1, 0.2, 0.3, 0.4, 0.5, 1e30])
    assert axis.at(0.1) - axis.at(0.5) > HEIGHT / 10
    assert axis.at(1e30) == 0


# The page of a sweep in a browser: readable by day and by night, on a phone too, whatever its
# settings are called.

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
    assert looks(browser, file) == []


# Trials in files for other programs: a table, and a study that Optuna opens.

EXPORTED_SPACE: dict[str, Dimension] = {
    "lr": Uniform(1e-4, 1e-1, True),
    "state": Choice(("a, b", 'say "no"')),
    "same": Choice((1, True, 1.5)),
    "layers": Integers(1, 8),
}


@pytest.fixture
def exported_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepState:
    """Return a sweep with one failed trial; most trials ended at a rung."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    options = {"sampler": "random", "trials": 9, "parallel": 3, "rungs": (1, 3), "last_report": 9}
    definition = sweep_of(EXPORTED_SPACE, **options)
    folder = ended_sweep(tmp_path / "data", definition, fails=lambda run: run.endswith("t005"))
    return Sweep(folder).status()


def test_a_table_has_one_line_for_each_trial(exported_state: SweepState) -> None:
    result = call("sweep", "export", "digits-k2x9", "-o", "trials.csv")
    assert (result.code, result.out) == (0, "trials.csv\n"), result.err
    with Path("trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in exported_state.trials]
    for row, trial in zip(rows, exported_state.trials, strict=True):
        assert row["parameters.state"] == trial.parameters["state"]
        assert (row["state"], row["run"], int(row["reports"])) == (
            trial.state,
            trial.run,
            trial.reports,
        )
        assert float(row["lr"]) == trial.parameters["lr"]
        assert float(row["usd"]) == trial.spent_usd
        assert (float(row["value"]) if row["value"] else None) == trial.value


@pytest.mark.parametrize(
    ("command", "name"),
    [(("sweep", "export"), "trials.csv"), (("report",), "page.html")],
)
def test_no_file_is_overwritten_without_force(
    exported_state: SweepState, command: tuple[str, ...], name: str
) -> None:
    Path(name).write_text("mine")
    assert call(*command, "digits-k2x9", "-o", name).code == 2
    assert Path(name).read_text() == "mine"
    assert call(*command, "digits-k2x9", "-o", name, "--force").code == 0
    assert Path(name).read_bytes() != b"mine"
    assert [file.name for file in Path().iterdir() if file.name.startswith(".")] == []
