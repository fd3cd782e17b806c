"""A run in a notebook: a card with live curves, and no trace of it elsewhere."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.card import card, live_card
from cloudtrain.submission.run import Run
from tests.support.events import fold_json
from tests.support.samples import BORN, born, write_events
from tests.unit.test_terminal import EVIL

STEPS = [
    {"type": "progress", "time": 100.0 + 2 * n, "step": n, "steps": 10, "loss": 1 / n}
    for n in range(1, 6)
]


def metrics(*values: float) -> list[dict[str, Any]]:
    return [
        {"type": "metrics", "time": 110.0, "step": n, "values": {"acc": value}}
        for n, value in enumerate(values)
    ]


class Tags(HTMLParser):
    """The tags of a page, and whether each was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_card_shows_state_progress_and_curves() -> None:
    html = card(
        fold_json(
            "a-1",
            [BORN, {"type": "node_started", "time": 100.0, "node": 0}, *STEPS, *metrics(0.5, 0.75)],
        ),
        110.0,
    )
    tags = Tags(html)
    assert (tags.open, tags.seen) == ([], {"div", "b", "span", "svg", "polyline"})
    text = " ".join(re.sub("<[^>]+>", " ", html).split())
    assert text.startswith(
        "a-1 &#9679; running 2 &times; 4 ranks, local, 10 s step 5/10 · 11 s left"
    )
    assert [f"{name} " in text for name in ("running loss", "acc")] == [True, True]
    assert "http" not in html, "nothing comes from outside"


def test_what_others_have_written_is_escaped() -> None:
    evil = f"<script>alert(1)</script>\"'&{EVIL}"
    events = [{**BORN, "provider": evil}, *metrics(0.1, 0.2)]
    events += [{"type": "metrics", "time": 1.0, "values": {evil: 1.0}}]
    events += [{"type": "activity", "time": 1.0, "node": 0, "rank": -1, "activity": evil}]
    html = card(fold_json(evil, events), 110.0)
    assert "<script" not in html
    assert Tags(html).seen <= {"div", "b", "span", "svg", "polyline"}


def test_a_run_shows_its_card_in_a_notebook_and_its_damage(tmp_path: Path) -> None:
    run = Run(born(RunStore(tmp_path), "a-1"))
    assert "<b>a-1</b>" in run._repr_html_()
    run.folder.events_file.unlink()
    run.folder.events_file.mkdir()
    assert "cannot be read" in Run(run.folder)._repr_html_()


class Notebook:
    """An IPython with a kernel, which remembers what was displayed."""

    def __init__(self, *, kernel: bool = True) -> None:
        self.shown: list[tuple[str, bool]] = []
        self.display = self
        self.shell = SimpleNamespace(kernel=1) if kernel else SimpleNamespace()

    def get_ipython(self) -> Any:
        return self.shell

    def __call__(self, data: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        self.shown.append((data["text/html"], update))


class Displayed(Notebook):
    """The same, with `IPython.display.display`."""

    def __init__(self) -> None:
        super().__init__()
        self.display = SimpleNamespace(display=self.__call__)  # type: ignore[assignment]


def test_waiting_in_a_notebook_draws_the_card_and_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Displayed()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    folder = born(RunStore(tmp_path), "a-1")
    write_events(folder, {"type": "ended", "time": 200.0, "state": "succeeded"})
    assert Run(folder).wait().state == "succeeded"
    assert [update for _, update in notebook.shown] == [False, True]
    assert "succeeded" in notebook.shown[-1][0]


@pytest.mark.parametrize(
    "module", [None, Notebook(kernel=False)], ids=["no IPython", "IPython in a terminal"]
)
def test_elsewhere_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "IPython", module)
    with live_card() as show:
        show(RunState(run_id="a-1"))
    assert module is None or module.shown == []
