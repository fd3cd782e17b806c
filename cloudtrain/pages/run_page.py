"""The page of a run: results, failure, settings and charts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.diagnosis.slowness import diagnose_slowness
from cloudtrain.errors import StorageError
from cloudtrain.pages.svg import (
    HEIGHT,
    WIDTH,
    Point,
    chart,
    document,
    element,
    folded,
    frame,
    line,
    picture,
    pieces,
    table,
    words,
    x_scale,
    y_scale,
)
from cloudtrain.runs.forecast import limit_warning
from cloudtrain.runs.forecast import shown as shown_forecast
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState, SeenEvents, explain
from cloudtrain.submission.compare import settings_of
from cloudtrain.submission.run import Run
from cloudtrain.units import format_duration, format_number
from cloudtrain_launcher import events
from cloudtrain_launcher.events import Event

MAX_METRICS = 24
"""Maximum metrics with a chart; the table has all of them."""
DOCUMENTS = ("spec.yaml", "request.json", "plan.json")
MAX_DOCUMENT_CHARACTERS = 200_000
MAX_LINES = 20
"""Maximum lines of the log of a failed run."""
MAX_LINE = 300
MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class _Shown:
    """A run, with everything that its page needs."""

    run: Run
    state: RunState
    reports: Reports
    end: float
    """Unix timestamp; now, if the run has not ended."""


@dataclass(slots=True)
class Reports:
    """Numbers that a run has reported."""

    metrics: dict[str, list[Point]] = field(default_factory=dict)
    """By name: (step, value), or (number of the report, value) without steps."""
    without_steps: set[str] = field(default_factory=set)
    """Names of metrics that were reported without a step."""
    throughput: list[Point] = field(default_factory=list)
    """(Unix timestamp, samples per second)."""

    def add(self, event: Event) -> None:
        """Add the numbers of an event, if it has any."""
        if isinstance(event, events.Progress) and event.samples_per_s is not None and event.time:
            self.throughput.append((event.time, event.samples_per_s))
        if not isinstance(event, events.Metrics):
            return

        for name, value in event.values.items():
            points = self.metrics.setdefault(name, [])
            if event.step is None or not math.isfinite(event.step):
                self.without_steps.add(name)
                points.append((float(len(points) + 1), value))
            else:
                points.append((event.step, value))


def reports_of(all_events: Iterable[Event]) -> Reports:
    """Return the numbers in all events of a run. An event that was read twice counts once."""
    reports = Reports()
    seen = SeenEvents()

    for event in all_events:
        if event.seq is None or seen.add(event.node, event.rank, event.seq):
            reports.add(event)

    return reports


def page(run: Run, now: float) -> str:
    """Return a run as an HTML document, as last seen.

    Raise StorageError if its folder cannot be read.
    """
    state = run.cached_status()
    shown = _Shown(run, state, reports_of(run.folder.each_event()), state.ended or now)

    return document(
        run.id,
        element("h1", words(run.id)),
        element("p", words(headline(state, shown.end))),
        *failure_parts(run, state),
        *_results(shown),
        *_settings(shown),
        *_verdict(shown),
        element("main", *_charts(shown)),
        element("h2", words("More about the run")),
        table(("", ""), _facts(shown), wraps=True),
        *_documents(shown),
    )


def headline(state: RunState, end: float) -> str:
    """Return `succeeded in 14 s on local`, for example. `end`: when the run ended, or now."""
    took = format_duration(state.seconds(end))
    where = f"on {state.provider}" + (
        f" as {state.contract}" if state.contract not in ("plain", "") else ""
    )
    size = (
        f"{state.nodes} node{'s' * (state.nodes != 1)} x {state.processes}"
        f" process{'es' * (state.processes != 1)}"
    )
    verb = {"succeeded": "succeeded in", "failed": "failed after", "stopped": "stopped after"}.get(
        state.state
    )
    return f"{verb or f'{state.state} for'} {took}, {size} {where}"


def failure_parts(run: Run, state: RunState) -> list[str]:
    """Return the markup that explains a failed run; nothing for another run."""
    if state.state != "failed":
        return []
    diagnosis = diagnose_run(run.folder, state)
    explanation = explain(state)
    paragraphs = [
        explanation,
        "" if diagnosis.cause in explanation or explanation in diagnosis.cause else diagnosis.cause,
        *(f"{line.place}  {line.text}" for line in diagnosis.evidence),
        f"What to do: {diagnosis.remedy}" if diagnosis.remedy else "",
    ]
    return [
        element(
            "div",
            *(element("p", words(text[:MAX_TEXT])) for text in paragraphs if text),
            *_preformatted("Traceback", _traceback(state)),
            *_preformatted(f"The last {MAX_LINES} lines", last_lines(run, state)),
            class_="failure",
        )
    ]


def _traceback(state: RunState) -> str:
    return (state.error.traceback or state.error.stack) if state.error else ""


def last_lines(run: Run, state: RunState) -> str:
    """Return the last lines that the failed rank printed, or all ranks if it printed nothing."""
    rank = state.error.rank if state.error and state.error.rank >= 0 else None
    return (_last_lines_of(run, rank) if rank is not None else "") or _last_lines_of(run, None)


def _last_lines_of(run: Run, rank: int | None) -> str:
    with suppress(StorageError):
        printed = (line for line in LogReader(run.folder).read_backward() if not line.kind)
        chosen = (line for line in printed if rank is None or line.rank == rank)
        latest = [
            f"[{line.source or f'node {line.node}'}] {line.text}"
            for line in islice(chosen, MAX_LINES)
        ]
        return "\n".join(line[:MAX_LINE] for line in reversed(latest))

    return ""


def _preformatted(title: str, text: str) -> list[str]:
    return [element("p", words(title), class_="note"), element("pre", words(text))] if text else []


def _verdict(shown: _Shown) -> list[str]:
    """Return where most of the time went, and what to change, if ranks reported step times."""
    slowness = diagnose_slowness(shown.run.folder, shown.state)
    if slowness.cause == "unknown":
        return []
    rows = [slowness.sentence]
    if slowness.change:
        rows.append(f"What to change: {slowness.change}")
    return [element("div", *(element("p", words(text)) for text in rows), class_="verdict")]


def _facts(shown: _Shown) -> list[list[str]]:
    """Return more facts about the run, as rows of a name and a text."""
    state = shown.state
    facts = {
        "job": state.name,
        "submitted": _moment(state.created) if state.created else "",
        "last seen": "" if state.has_ended else _moment(shown.end),
        "machines": state.instance,
        "image": state.image,
        "restarts": str(state.restarts) if state.restarts else "",
        "resumed from step": _plain(state.resumed.step) if state.resumed else "",
        "checkpoint of step": _plain(state.checkpoint.step) if state.checkpoint else "",
        "forecast": shown_forecast(forecast) if (forecast := shown.run.forecast()) else "",
        "limit": (limit_warning(forecast) if forecast and not state.limit_too_low else ""),
        "cost": _cost(state),
        "weights sha256": (state.result.parameters_sha256 if state.result else "")[:16],
        **_origin(shown.run),
        "warnings": "; ".join(state.lasting_warnings),
    }
    return [[name, text] for name, text in facts.items() if text]


def _origin(run: Run) -> dict[str, str]:
    """Return commit, source and version of the run; nothing if its plan cannot be read."""
    record = RunRecord(run.folder)
    with suppress(StorageError):
        commit = record.git_commit[:12]
        digest = record.source_digest[:12]
        return {"git commit": commit, "source sha256": digest, "cloudtrain": record.version}

    return {}


def _moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(when))


def _cost(state: RunState) -> str:
    if state.billing is None:
        return ""
    return (
        "price unknown"
        if state.billing.usd is None
        else f"{state.billing.usd:.2f} USD at list price"
    )


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return format_number(value) if isinstance(value, float) else str(value)


def _charts(shown: _Shown) -> list[str]:
    reports = shown.reports
    drawn = []
    for name, points in list(reports.metrics.items())[:MAX_METRICS]:
        if len(points) > 1:  # a single value is among the results
            x_name = "report" if name in reports.without_steps else "step"
            drawing = metric_chart(name, points, x_name=x_name)
            drawn.append((name, unseen_values(points), drawing))

    drawn.append(("Throughput", "", throughput_chart(shown)))
    return [chart(name, note, drawing) for name, note, drawing in drawn if drawing or note]


def _results(shown: _Shown) -> list[str]:
    """Return a table of the last value and the range of every metric; a long one is folded."""
    metrics = shown.reports.metrics
    rows = [
        [name, *(format_number(value) for value in (points[-1][1], *_range(points)))]
        for name, points in metrics.items()
    ]
    if not rows:
        return []
    content = table(("metric", "last", "lowest", "highest"), rows)
    if len(metrics) > MAX_METRICS:
        title = f"All {len(metrics)} metrics; the first {MAX_METRICS} are drawn below"
        return [folded(title, content)]

    return [element("h2", words("Results")), content]


def _settings(shown: _Shown) -> list[str]:
    """Return a table of the settings of the run."""
    rows = [[name, _plain(value)] for name, value in settings_of(shown.run).items()]
    return [element("h2", words("Settings")), table(("", ""), rows, wraps=True)] if rows else []


def _range(points: Sequence[Point]) -> tuple[float, float]:
    numbers = [value for _, value in points if not math.isnan(value)] or [math.nan]
    return min(numbers), max(numbers)


def _documents(shown: _Shown) -> list[str]:
    """Return spec, request and plan as stored, folded."""
    documents = []
    for name in DOCUMENTS:
        with suppress(StorageError, OSError):
            if name.endswith(".json"):
                text = json.dumps(shown.run.folder.document(name), indent=2, ensure_ascii=False)
            else:
                text = shown.run.folder.text(name)

            if len(text) > MAX_DOCUMENT_CHARACTERS:
                excess = len(text) - MAX_DOCUMENT_CHARACTERS
                text = f"{text[:MAX_DOCUMENT_CHARACTERS]}\n… and {excess} more characters"

            documents.append(folded(name, element("pre", words(text))))

    return documents


Curves = Sequence[tuple[str, Sequence[Point]]]
"""Points of each curve, with the name that its tooltip shows."""


def metric_chart(name: str, points: Sequence[Point], *, x_name: str = "step") -> str:
    """Draw one metric over the steps, or over its reports."""
    return _chart("", [(name, points)], x_name, label=name)


def unseen_values(points: Sequence[Point]) -> str:
    """Describe the values that a chart cannot show: infinite ones, and those outside of it."""
    finite = [value for _, value in points if math.isfinite(value)]
    y = y_scale(finite)
    beyond = [value for value in finite if not y.low <= value <= y.high]
    sentences = []
    if len(finite) < len(points):
        sentences.append(
            f"{len(points) - len(finite)} of {len(points)} values are NaN or infinite."
        )

    if beyond:
        sentences.append(f"{len(beyond)} values lie outside of the chart.")
    return " ".join(sentences)


def throughput_chart(shown: _Shown) -> str:
    """Draw samples per second over the time since the run was submitted, from zero."""
    begin = shown.state.created
    longest = shown.end - begin
    unit, size = time_unit(longest)
    points = [((time - begin) / size, rate) for time, rate in shown.reports.throughput]
    return _chart(
        "samples per second",
        [(shown.run.id, points)],
        f"time since it was submitted ({unit})",
        reach=((0.0, longest / size), (0.0,)),
    )


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the best unit to show this time, and its length in seconds."""
    if seconds > 7200:
        return "h", 3600.0
    if seconds > 180:
        return "min", 60.0
    return "s", 1.0


def _chart(
    name: str,
    curves: Curves,
    x_name: str,
    label: str = "",
    reach: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> str:
    """Draw curves, or return nothing if no point is finite.

    `name` is shown above the axis; without it `label` is the accessible name. `reach`: values that
    the horizontal and the vertical axis always include.
    """
    everything = [point for _, points in curves for point in points if math.isfinite(point[1])]
    if not everything:
        return ""
    across = [*(at for at, _ in everything), *reach[0]]
    x = x_scale(min(across), max(across))
    y = y_scale(*([value for _, value in points] for _, points in curves), ends=reach[1])
    whole = all(at == int(at) for at, _ in everything)
    parts = [
        frame(
            x, y, x_name, name, [tick for tick in x.ticks() if tick == int(tick)] if whole else None
        )
    ]
    for title, points in curves:
        for piece in pieces(points):
            drawn = [(x.at(at), y.at(value)) for at, value in (*piece, piece[-1])]
            parts.append(line(drawn, "curve best" if len(piece) > 1 else "curve best alone", title))
    return picture(WIDTH, HEIGHT, f"{name or label} over the {x_name}", *parts)
