"""The page of one run, or of two side by side: result, failure, timeline and charts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cloudtrain.diagnosis.run_failure import diagnose_run
from cloudtrain.diagnosis.slowness import diagnose_slowness
from cloudtrain.errors import StorageError
from cloudtrain.pages.curves import (
    busy_chart,
    metric_chart,
    phases_chart,
    phases_legend,
    throughput_chart,
    unseen_values,
)
from cloudtrain.pages.document import chart, document, folded, table
from cloudtrain.pages.story import Story, story_of
from cloudtrain.pages.svg import Point, element, words
from cloudtrain.pages.timeline import legend, timeline
from cloudtrain.runs.failure import explain
from cloudtrain.runs.forecast import limit_warning
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.submission.compare import compare, settings_of
from cloudtrain.submission.run import Run
from cloudtrain.units import format_duration, format_number

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
    """One run, with everything that its part of the page needs."""

    run: Run
    state: RunState
    story: Story


def page(runs: Sequence[Run], now: float) -> str:
    """Return one run or two as an HTML document, as last seen.

    Raise StorageError if a run folder cannot be read.
    """
    shown = [_read(run, now) for run in runs]
    if len(shown) == 1:
        return document(shown[0].run.id, *_one(shown[0]))
    return document(" and ".join(side.run.id for side in shown), *_side_by_side(shown))


def _read(run: Run, now: float) -> _Shown:
    state = run.cached_status()
    events = (event for event, _ in run.folder.events_from(0) if event is not None)
    return _Shown(run, state, story_of(events, state, now))


def _one(shown: _Shown) -> list[str]:
    return [
        element("h1", words(shown.run.id)),
        element("p", words(headline(shown.state, shown.story.end))),
        *failure_parts(shown.run, shown.state),
        *_results([shown]),
        *_settings(shown),
        *_verdict(shown),
        element("main", *_charts([shown]), *_timeline(shown), *_phases(shown), *_busy(shown)),
        element("h2", words("More about the run")),
        table(("", ""), _facts(shown), wraps=True),
        *_documents(shown),
    ]


def _side_by_side(shown: Sequence[_Shown]) -> list[str]:
    names = [side.run.id for side in shown]
    compared = compare([side.run for side in shown])
    settings = [
        [name, *(_plain(value) for value in values)] for name, values in compared.settings.items()
    ]
    lines = [
        element("p", words(f"{side.run.id} ({look}): {headline(side.state, side.story.end)}"))
        for side, look in zip(shown, ("solid lines", "dashed lines"), strict=False)
    ]
    facts = [dict(_facts(side)) for side in shown]
    rows = [
        [name, *(column.get(name, "") for column in facts)]
        for name in dict.fromkeys(n for f in facts for n in f)
    ]
    return [
        element("h1", words(" and ".join(names))),
        *lines,
        *(part for side in shown for part in failure_parts(side.run, side.state, side.run.id)),
        *_results(shown),
        element("h2", words("Settings that differ" if settings else "The settings are the same")),
        table(("", *names), settings),
        *(part for side in shown for part in _verdict(side, side.run.id)),
        element(
            "main",
            *_charts(shown),
            *(part for side in shown for part in (*_timeline(side), *_phases(side), *_busy(side))),
        ),
        folded("More about both", table(("", *names), rows)),
    ]


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


def failure_parts(run: Run, state: RunState, name: str = "") -> list[str]:
    """Return the markup that explains a failed run; nothing for another run.

    `name`: the run's name in front, on a page of two runs.
    """
    if state.state != "failed":
        return []
    diagnosis = diagnose_run(run.folder, state)
    explanation = explain(state)
    paragraphs = [
        f"{name}: {explanation}" if name and explanation else explanation,
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


def _verdict(shown: _Shown, name: str = "") -> list[str]:
    """Return where most of the time went, and what to change, if ranks reported step times."""
    slowness = diagnose_slowness(shown.run.folder, shown.state)
    if slowness.cause == "unknown":
        return []
    rows = [
        _with_name(name, slowness.sentence),
        *([f"What to change: {slowness.change}"] if slowness.change else []),
    ]
    return [element("div", *(element("p", words(text)) for text in rows if text), class_="verdict")]


def _with_name(name: str, text: str) -> str:
    return f"{name}: {text}" if name and text else text


def _phases(shown: _Shown) -> list[str]:
    totals = shown.state.step_times.totals()
    drawing = phases_chart(totals)
    if not drawing:
        return []
    note = "Without the first steps of each process."
    return [chart(f"Where the time of {shown.run.id} went", note, phases_legend(totals) + drawing)]


def _facts(shown: _Shown) -> list[list[str]]:
    """Return more facts about the run, as rows of a name and a text."""
    state = shown.state
    facts = {
        "job": state.name,
        "submitted": _moment(state.created) if state.created else "",
        "last seen": "" if state.has_ended else _moment(shown.story.end),
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


def _timeline(shown: _Shown) -> list[str]:
    drawing = timeline(shown.story)
    if not drawing:
        return []
    return [
        chart(
            f"Timeline of {shown.run.id}",
            "Point at a span or a mark to see more.",
            legend(shown.story) + drawing,
        )
    ]


def _charts(shown: Sequence[_Shown]) -> list[str]:
    names = _metric_names(shown)
    both = "" if len(shown) == 1 else f"Solid: {shown[0].run.id}; dashed: {shown[1].run.id}."
    drawn = []
    for name in names[:MAX_METRICS]:
        curves = [(side.run.id, side.story.metrics.get(name, [])) for side in shown]
        if all(len(points) < 2 for _, points in curves):  # its value is among the results
            continue
        steps = "report" if any(name in side.story.without_steps for side in shown) else "step"
        drawn.append((name, unseen_values(curves), metric_chart(name, curves, x_name=steps)))
    rates = unseen_values([(side.run.id, side.story.throughput) for side in shown], (0.0,))
    drawn.append(
        ("Throughput", rates, throughput_chart([(side.run.id, side.story) for side in shown]))
    )
    return [
        chart(name, f"{both} {unseen}".strip(), drawing)
        for name, unseen, drawing in drawn
        if drawing or unseen
    ]


def _metric_names(shown: Sequence[_Shown]) -> list[str]:
    return list(dict.fromkeys(name for side in shown for name in side.story.metrics))


def _busy(shown: _Shown) -> list[str]:
    if not shown.story.busy:
        return []
    note = f"A line for each of {count}." if (count := len(shown.story.busy)) > 1 else ""
    title = "Utilisation" if shown.story.gpus else "CPU"
    drawing = busy_chart(shown.run.id, shown.story)
    return [chart(f"{title} of {shown.run.id}", note, drawing)] if drawing else []


def _results(shown: Sequence[_Shown]) -> list[str]:
    """Return a table of the last value and the range of every metric; a long one is folded."""
    several = len(shown) > 1
    rows = [
        [
            name,
            *([side.run.id] if several else []),
            *(format_number(value) for value in (points[-1][1], *_range(points))),
        ]
        for side in shown
        for name, points in side.story.metrics.items()
    ]
    if not rows:
        return []
    content = table(("metric", *(["run"] if several else []), "last", "lowest", "highest"), rows)
    count = len(_metric_names(shown))
    if count > MAX_METRICS:
        return [folded(f"All {count} metrics; the first {MAX_METRICS} are drawn below", content)]
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
