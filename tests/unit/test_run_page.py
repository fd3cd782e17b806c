"""The page of a run and its card in a notebook."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.api.card import card, live_card
from cloudtrain.api.run import Run
from cloudtrain.pages.run_page import page
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain_wire import events
from cloudtrain_wire.events import Event
from tests.golden.cases import plan_of
from tests.support.in_process import call
from tests.support.page_checks import Browser, looks, parsed
from tests.support.samples import BORN, born, fold_json, write_events
from tests.unit.test_terminal import EVIL

# The page of a run: what it says of a run's events, and that it is readable on every screen.

START = 1_790_000_000.0
HOSTILE = '<script>alert("1")</script> & \x1b[31mred\x00\u202e'


def began(run: str = "digits-1") -> events.Submitting:
    return events.Submitting(
        time=START, name=run, provider="local", contract="plain", nodes=2, processes=1, seq=1
    )


def training(end: events.Ended, metric: str = "val_accuracy", steps: int = 40) -> list[Event]:
    """A run of two nodes: training with evaluations, slow data, a restart, and its end."""
    history: list[Event] = [
        began(),
        events.Submitted(time=START + 2, ref={}),
        *(events.NodeStarted(time=START + 60 + node, node=node) for node in (0, 1)),
        *(events.RankStarted(time=START + 80, node=node, rank=node) for node in (0, 1)),
    ]
    for step in range(steps):
        time = START + 80 + 10 * step
        history += [
            events.Progress(time=time, rank=0, step=step, samples_per_s=900.0 + step % 3),
            events.Metrics(
                time=time, rank=0, step=float(step), values={metric: 1 - 1 / (step + 2)}
            ),
            events.StepTimes(
                time=time, rank=0, steps=10, step=10 * step, wall=10.0, data=6.0, compute=4.0
            ),
        ]

    late = START + 85 + 10 * steps
    return [
        *history,
        events.Restarted(time=late, attempt=1, why="rank 1 was killed"),
        events.Checkpoint(time=late, rank=0, step=float(steps), path="/x"),
        end,
    ]


def run_of(root: Path, run: str, events: Sequence[Event], **documents: str) -> Run:
    files = {name.replace("_", "."): text for name, text in documents.items()}
    folder = RunStore(root).create(run, files)
    folder.append(*events)
    return Run(folder)


SUCCEEDED = events.Ended(time=START + 500, state="succeeded")
FAILED = events.Ended(
    time=START + 500,
    state="failed",
    error=events.Cause(
        rank=1,
        node=1,
        time=START + 499,
        exception="RuntimeError",
        message=f"CUDA out of memory {HOSTILE}",
    ),
)


def test_a_page_is_readable_on_every_screen_and_asks_for_nothing(
    tmp_path: Path, browser: Browser
) -> None:
    history = training(FAILED, "a_metric/with a very long name" * 4)
    run = run_of(tmp_path, "digits-1", history, spec_yaml="name: digits\n", plan_json="{}")
    file = tmp_path / "page.html"
    file.write_text(page(run, START + 900))
    assert looks(browser, file) == []


def test_a_failed_run_carries_its_traceback_and_its_last_lines(tmp_path: Path) -> None:
    cause = {"rank": 1, "node": 1, "time": START, "exception": "ValueError", "message": "no"}
    error = events.Error(**cause, traceback='File "a.py", line 3\nValueError')  # type: ignore[arg-type]
    end = events.Ended(time=START + 500, state="failed", error=events.Cause(**cause))  # type: ignore[arg-type]
    history = [*training(SUCCEEDED)[:-1], error, end]
    run = run_of(tmp_path, "digits-1", history)
    lines = [f"2026-11-21T02:04:34.447Z [rank 1] line {at}{HOSTILE}\n" for at in range(50)]
    (run.folder.path / "logs").mkdir(exist_ok=True)
    (run.folder.path / "logs/node-1.log").write_text("".join(lines))
    traceback, last_lines = [pre.text or "" for pre in parsed(page(run, START + 900)).iter("pre")]
    assert traceback == 'File "a.py", line 3\nValueError'
    shown = '<script>alert("1")</script> & \\x1b[31mred\\x00\\u202e'
    assert last_lines.splitlines() == [f"[rank 1] line {at}{shown}" for at in range(30, 50)]


def test_a_page_shows_a_traceback_once(tmp_path: Path) -> None:
    cause = {"rank": 1, "node": 1, "time": START, "exception": "ValueError", "message": "no"}
    traceback = 'File "a.py", line 3\n    raise ValueError("no")\nValueError: no'
    error = events.Error(**cause, traceback=traceback)  # type: ignore[arg-type]
    end = events.Ended(time=START + 500, state="failed", error=events.Cause(**cause))  # type: ignore[arg-type]
    run = run_of(tmp_path, "digits-1", [*training(SUCCEEDED)[:-1], error, end])
    (run.folder.path / "logs").mkdir(exist_ok=True)
    lines = ["epoch 3", *(f"[rank1]: {line}" for line in traceback.splitlines())]
    log = "".join(f"2026-11-21T02:04:34.447Z [rank 1] {line}\n" for line in lines)
    (run.folder.path / "logs/node-1.log").write_text(log)
    shown = [pre.text or "" for pre in parsed(page(run, START + 900)).iter("pre")]
    assert shown == [traceback, "[rank 1] epoch 3"]


def test_a_failed_run_says_why_and_what_to_do(tmp_path: Path) -> None:
    root = parsed(page_of(tmp_path, training(FAILED)))
    failure = root.find("body/div[@class='failure']")
    assert failure is not None
    paragraphs = [paragraph.text or "" for paragraph in failure.iter("p")]
    assert paragraphs[0].startswith("rank 1 (node 1) CUDA out of memory")
    assert paragraphs[1] == "the program asked for more memory than the GPU had left"
    assert paragraphs[-1].startswith("What to do: make the batch smaller")


def test_nothing_that_a_job_says_becomes_markup(tmp_path: Path) -> None:
    history = training(FAILED, HOSTILE)
    run = run_of(tmp_path, "digits-1", history, spec_yaml=HOSTILE, plan_json="{}")
    root = parsed(page(run, START + 900))
    assert "script" not in {element.tag for element in root.iter()}
    shown = '<script>alert("1")</script> & \\x1b[31mred\\x00\\u202e'
    assert root.findtext("body/main/section/h2") == shown
    assert root.findtext("body/details/pre") == shown
    drawing = root.find("body/main/section/div/svg")
    assert drawing is not None
    assert drawing.get("aria-label") == f"{shown} over the step"
    assert drawing.findtext("path/title") == shown


def test_values_that_are_not_finite_and_names_of_markup_do_no_harm(
    tmp_path: Path, browser: Browser
) -> None:
    values = (math.nan, math.inf, 1.0, -math.inf, 2.0)
    history = [
        began(),
        *(
            events.Metrics(time=START, rank=0, step=float(at), values={HOSTILE: v})
            for at, v in enumerate(values)
        ),
        events.Metrics(time=START, rank=0, values={"never": math.nan}),
    ]
    file = tmp_path / "page.html"
    file.write_text(page(run_of(tmp_path, "digits-1", history), START + 9))
    assert looks(browser, file) == []


def metrics(values: Sequence[float | None], **more: float) -> list[Event]:
    """A run that has reported one metric, `loss`, step by step; and others at its first step."""
    reports = [
        events.Metrics(
            time=START + at, rank=0, step=float(at), values={"loss": math.nan if v is None else v}
        )
        for at, v in enumerate(values)
    ]
    return [began(), *reports, events.Metrics(time=START, rank=0, step=0.0, values=more)]


def page_of(root: Path, events: Sequence[Event]) -> str:
    return page(run_of(root, "digits-1", events), START + 900)


def test_one_peak_among_many_points_is_drawn(tmp_path: Path) -> None:
    root = parsed(page_of(tmp_path, metrics([*[1.0] * 5000, 5.0, *[1.0] * 5000])))
    (curve,) = [path.get("d", "") for path in root.iter("path") if "curve" in path.get("class", "")]
    heights = re.findall(r"[\d.]+ ([\d.]+) ", curve)
    assert len(set(heights)) > 1
    assert len(heights) < 400


def test_the_throughput_is_a_chart_after_those_of_the_metrics(tmp_path: Path) -> None:
    root = parsed(page_of(tmp_path, training(SUCCEEDED)))
    labels = [drawing.get("aria-label") for drawing in root.iter("svg")]
    assert labels == ["val_accuracy over the step", "samples/s over the report"]


def test_the_command_names_its_file_and_writes_over_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "data", "digits-1", training(SUCCEEDED), plan_json='{"provider": "local"}')
    arguments = ("--data-dir", str(tmp_path / "data"), "report", "digits-1")
    result = call(*arguments)
    file = tmp_path / "data/runs/digits-1/digits-1.html"
    assert (result.code, result.out) == (0, f"{file}\n"), result.err
    assert "val_accuracy" in file.read_text()
    assert call(*arguments, "-o", "page.html").code == 0
    assert "is there already" in call(*arguments, "-o", "page.html").err


# A run in a notebook: a live card, and no trace of it elsewhere.

STEPS = [
    {"type": "progress", "time": 100.0 + 2 * n, "step": n, "steps": 10, "loss": 1 / n}
    for n in range(1, 6)
]


def card_metrics(*values: float) -> list[dict[str, Any]]:
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


def test_a_card_shows_state_progress_and_metrics() -> None:
    html = card(
        fold_json(
            "a-1",
            [
                BORN,
                {"type": "node_started", "time": 100.0, "node": 0},
                *STEPS,
                *card_metrics(0.5, 0.75),
            ],
        ),
        110.0,
    )
    tags = Tags(html)
    assert (tags.open, tags.seen) == ([], {"div", "b", "span"})
    text = " ".join(re.sub("<[^>]+>", " ", html).split())
    assert text.startswith(
        "a-1 &#9679; running 2 &times; 4 ranks, local, 10 s step 5/10 · 10 s left"
    )
    assert text.endswith("acc 0.75")
    assert "http" not in html, "nothing comes from outside"


def test_a_notebook_shows_a_run_as_its_card_or_why_it_cannot_be_read(tmp_path: Path) -> None:
    folder = born(RunStore(tmp_path), "a-1")
    assert Run(folder)._repr_html_().startswith("<div")
    assert "<b>a-1</b>" in Run(folder)._repr_html_()
    folder.events_file.unlink()
    folder.events_file.mkdir()
    html = Run(folder)._repr_html_()
    assert html.startswith("&lt;Run a-1:")
    assert "events.jsonl" in html


def test_a_notebook_shows_a_plan_as_a_table() -> None:
    job = "name: digits\nresources: {instance: {aws: ml.g5.xlarge}}\ninputs: {a: 's3://b/<script>&'}\n"
    html = plan_of("aws", job)._repr_html_()
    tags = Tags(html)
    assert (tags.open, tags.seen) == ([], {"table", "caption", "tr", "th", "td"})
    assert '<td style="text-align:left">1 x ml.g5.xlarge</td>' in html
    assert "s3://b/&lt;script&gt;&amp;" in html
    assert "at most " in html


def test_what_others_have_written_is_escaped() -> None:
    evil = f"<script>alert(1)</script>\"'&{EVIL}"
    events = [{**BORN, "provider": evil}, *card_metrics(0.1, 0.2)]
    events += [{"type": "metrics", "time": 1.0, "values": {evil: 1.0}}]
    events += [{"type": "activity", "time": 1.0, "node": 0, "rank": -1, "activity": evil}]
    html = card(fold_json(evil, events), 110.0)
    assert "<script" not in html
    assert Tags(html).seen <= {"div", "b", "span"}


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
