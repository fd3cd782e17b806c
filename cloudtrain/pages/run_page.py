"""The page of a run: results, failure, settings and charts."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cloudtrain.api.compare import settings_of
from cloudtrain.api.run import Run
from cloudtrain.diagnosis.failure import BytesRead, diagnose_run
from cloudtrain.diagnosis.slowness import diagnose_slowness
from cloudtrain.errors import StorageError
from cloudtrain.pages.chart import Axis, Chart, Point, curve, x_axis, y_axis
from cloudtrain.pages.document import render
from cloudtrain.runs.forecast import shown as shown_forecast
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_number
from cloudtrain_wire.secret_values import masker

MAX_METRICS = 24
"""Maximum metrics with a chart; the table has all of them."""
THROUGHPUT = "samples/s"
"""Name of the throughput among the curves of progress."""
DOCUMENTS = ("spec.yaml", "request.json", "plan.json")
MAX_DOCUMENT_CHARACTERS = 200_000
MAX_LINES = 20
"""Maximum lines of the log of a failed run."""
MAX_LINE = 300
MAX_TEXT = 1000

_RANK_MARK = re.compile(r"^\[rank\d+\]: ?")
"""Beginning of torch's own lines about an exception."""


@dataclass(slots=True)
class Metric:
    """Values of a metric over the steps, or over its reports if one of them lacks a step."""

    points: list[Point] = field(default_factory=list)
    over: str = "step"

    def add(self, step: float | None, value: float) -> None:
        """Add a report."""
        if step is None or not math.isfinite(step):
            self.over = "report"
            step = len(self.points) + 1.0

        self.points.append((step, value))

    def summary(self) -> tuple[float, float, float]:
        """Return the last, the lowest and the highest value."""
        values = [value for _, value in self.points]
        numbers = [value for value in values if not math.isnan(value)] or values
        return values[-1], min(numbers), max(numbers)


def metrics_of(run: Run) -> dict[str, Metric]:
    """Return the metrics that a run has reported."""
    metrics: dict[str, Metric] = {}
    for point in run.metrics():
        for name, value in point.values.items():
            metrics.setdefault(name, Metric()).add(point.step, value)

    return metrics


def throughput_of(state: RunState) -> Metric:
    """Return the reported samples per second."""
    throughput = Metric()
    if THROUGHPUT in state.progress_curves:
        for rate in state.progress_curves[THROUGHPUT].values:
            throughput.add(None, rate)

    return throughput


def page(run: Run, time_now: float, progress: BytesRead | None = None) -> str:
    """Return a run as an HTML document, as last seen. `progress`: see `diagnose_run`.

    Raise StorageError if its folder cannot be read.
    """
    state = run.cached_status()
    end = state.ended or time_now
    metrics = metrics_of(run)
    charts = list(metric_charts(metrics))
    charts += metric_charts({THROUGHPUT: throughput_of(state)})

    failure = None
    if state.state == "failed":
        failure = failure_of(run, state, progress)

    return render(
        "run_page.html",
        state=state,
        end=end,
        failure=failure,
        metrics=metrics,
        max_metrics=MAX_METRICS,
        settings={name: _plain(value) for name, value in settings_of(run).items()},
        slowness=diagnose_slowness(run.folder, state),
        charts=charts,
        facts=facts_of(run, state, end),
        documents=dict(documents_of(run)),
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """Explanation of a failed run."""

    paragraphs: Sequence[str]
    printed: Mapping[str, str]
    """Traceback and last lines by their titles; an empty one is not shown."""


def failure_of(run: Run, state: RunState, progress: BytesRead | None = None) -> Failure:
    """Return what explains a failed run."""
    diagnosis = diagnose_run(run.folder, state, progress)
    paragraphs = [diagnosis.headline]
    if diagnosis.cause not in paragraphs[0] and paragraphs[0] not in diagnosis.cause:
        paragraphs.append(diagnosis.cause)

    for line in diagnosis.evidence:
        if line.text in paragraphs[0]:
            paragraphs.append(line.place)
        else:
            paragraphs.append(f"{line.place}  {line.text}")

    if diagnosis.remedy:
        paragraphs.append(f"What to do: {diagnosis.remedy}")

    error = state.error
    traceback = ""
    if error:
        traceback = error.traceback or error.stack

    rank = None
    if error and error.rank >= 0:
        rank = error.rank

    last_lines = last_lines_of(run, rank, traceback=traceback)
    if not last_lines and not traceback:
        last_lines = last_lines_of(run)

    return Failure(
        [text[:MAX_TEXT] for text in paragraphs],
        {
            "Traceback": traceback,
            "The last lines": last_lines,
        },
    )


def last_lines_of(run: Run, rank: int | None = None, *, traceback: str = "") -> str:
    """Return the last lines that a rank printed, or all ranks; empty if they cannot be read.

    `traceback`: one that the page has already, whose lines are left out.
    """
    latest: list[str] = []
    with suppress(StorageError):
        lines = LogReader(run.folder).read_backward(unfinished=True)
        printed = (line for line in lines if not line.kind and rank in (None, line.rank))
        for line in islice(printed, MAX_LINES):
            text = _RANK_MARK.sub("", line.text).strip()
            if not text or text in traceback:
                continue

            shown = f"[{line.source or f'node {line.node}'}] {line.text}"
            latest.append(shown[:MAX_LINE])

    return "\n".join(reversed(latest))


@dataclass(frozen=True, slots=True)
class Section:
    """A chart with its title and a sentence."""

    title: str
    note: str
    chart: Chart | None
    """None if no value is finite."""


def metric_charts(metrics: Mapping[str, Metric]) -> Iterator[Section]:
    """Yield the charts of the first metrics; a single value is among the results only."""
    for name, metric in islice(metrics.items(), MAX_METRICS):
        if len(metric.points) < 2:
            continue

        finite = [point for point in metric.points if math.isfinite(point[1])]
        places = [at for at, _ in finite] or [0.0]
        whole = all(at == int(at) for at in places)
        x = x_axis(metric.over, min(places), max(places), counts=whole)
        y = y_axis("", [value for _, value in finite])
        drawn = Chart(
            label=f"{name} over the {metric.over}",
            x=x,
            y=y,
            curves=[curve(name, metric.points, x, y)],
        )
        yield Section(name, unseen_values(metric.points, y), drawn if finite else None)


def unseen_values(points: Sequence[Point], y: Axis) -> str:
    """Describe the values that a chart cannot show: infinite ones, and those outside of it."""
    finite = [value for _, value in points if math.isfinite(value)]
    beyond = [value for value in finite if not y.low <= value <= y.high]
    sentences = []
    if len(finite) < len(points):
        infinite = len(points) - len(finite)
        sentences.append(f"{infinite} of {len(points)} values are NaN or infinite.")
    if beyond:
        sentences.append(f"{len(beyond)} values lie outside of the chart.")

    return " ".join(sentences)


def facts_of(run: Run, state: RunState, end: float) -> dict[str, str]:
    """Return more facts about the run by name; an empty one is not shown."""
    facts = {
        "job": state.name,
        "submitted": _moment(state.created),
        "last seen": "",
        "machines": state.instance,
        "image": state.image,
        "restarts": str(state.restarts or ""),
        "resumed from step": "",
        "checkpoint of step": "",
        "forecast": "",
        "cost": cost_of(state),
        "weights sha256": "",
    }
    if not state.has_ended:
        facts["last seen"] = _moment(end)
    if state.resumed:
        facts["resumed from step"] = _plain(state.resumed.step)
    if state.checkpoint:
        facts["checkpoint of step"] = _plain(state.checkpoint.step)
    if forecast := run.forecast():
        facts["forecast"] = shown_forecast(forecast)
    if state.result:
        facts["weights sha256"] = state.result.parameters_sha256[:16]

    with suppress(StorageError):
        record = RunRecord(run.folder)
        facts["git commit"] = record.git_commit[:12]
        facts["source sha256"] = record.source_digest[:12]
        facts["cloudtrain"] = record.version

    facts["warnings"] = "; ".join(state.warnings)
    return facts


def cost_of(state: RunState) -> str:
    """Return the bill of a run; empty if there is none."""
    if state.billing is None:
        return ""
    if state.billing.usd is None:
        return "price unknown"
    return f"{state.billing.usd:.2f} USD at list price"


def documents_of(run: Run) -> Iterator[tuple[str, str]]:
    """Yield name and text of spec, request and plan as stored."""
    for name in DOCUMENTS:
        with suppress(StorageError, OSError):
            if name.endswith(".json"):
                text = json.dumps(run.folder.document(name), indent=2, ensure_ascii=False)
            else:
                text = run.folder.text(name)

            text = masker.mask_text(text)  # a part of a secret would not be recognised
            excess = len(text) - MAX_DOCUMENT_CHARACTERS
            if excess > 0:
                text = f"{text[:MAX_DOCUMENT_CHARACTERS]}\n… and {excess} more characters"

            yield name, text


def _moment(when: float) -> str:
    """Return a time for people; empty for 0, an unknown one."""
    if not when:
        return ""

    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(when))


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return format_number(value)

    return str(value)
