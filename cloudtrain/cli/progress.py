"""The progress line of a run: activity, position, speed, and time left."""

from __future__ import annotations

from cloudtrain.cli.terminal import bar, one_line
from cloudtrain.runs.forecast import remaining_seconds
from cloudtrain.runs.logs import position_parts
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration, format_number

MAX_METRICS = 4

_Part = tuple[int, str]
"""Rank and text of a part; a line that is too long drops the highest ranks."""


def progress_line(state: RunState, time: float, width: int) -> str:
    """Return the line, at most `width` characters long. `time`: a Unix timestamp."""
    elapsed = format_duration(state.seconds(time))
    parts = _training_parts(state, time)
    if not parts:
        return one_line(_before_training(state, time, elapsed))[:width]
    parts = [*_activity_parts(state, time), *parts, (1, elapsed)]
    while _length(parts) > width and len(parts) > 1:
        least = max(rank for rank, _ in parts)
        at = max(index for index, (rank, _) in enumerate(parts) if rank == least)
        del parts[at]
    return one_line("  ".join(text for _, text in parts))[:width]


def _length(parts: list[_Part]) -> int:
    return len(one_line("  ".join(text for _, text in parts)))


def activity_text(state: RunState, time: float) -> str:
    """Return `restoring for 12 s`; empty while the run trains, or has not begun."""
    doing = state.activity
    if doing is None:
        return ""
    return doing.activity + (
        f" for {format_duration(time - doing.time)}" if time - doing.time >= 1 else ""
    )


def _activity_parts(state: RunState, time: float) -> list[_Part]:
    text = activity_text(state, time)
    return [(0, text)] if text else []


def _before_training(state: RunState, time: float, elapsed: str) -> str:
    if state.state == "running" and state.activity:
        return activity_text(state, time)
    if state.state != "running":
        since = format_duration(max(0.0, time - state.phase_since)) if state.phase else elapsed
        return f"{state.phase or state.state}  {since}"
    return f"{len(state.ranks)} of {state.nodes * state.processes} ranks up  {elapsed}"


def _training_parts(state: RunState, time: float) -> list[_Part]:
    """Return the parts about training; nothing before the first report."""
    at = state.position
    parts = list[_Part]()
    if not state.progress and not state.metrics:
        return parts
    where = position_parts(at)
    parts += [(0 if text.startswith("step") or len(where) == 1 else 3, text) for text in where]
    parts += [(2 + min(number, 2), text) for number, text in enumerate(latest_metrics(state))]
    if rate_text(state):
        parts.append((3, rate_text(state)))
    if isinstance(at.steps, int) and at.steps:
        parts.append((6, bar(at.step or 0, at.steps)))
    eta = remaining_seconds(state, time)
    if eta is not None:
        parts.append((1, f"{format_duration(eta)} left"))
    return parts


def latest_metrics(state: RunState) -> list[str]:
    """Return `loss 0.25`, `val_accuracy 0.93`: the running loss, then validation first."""
    running = (
        {"loss": state.progress.loss} if state.progress and state.progress.loss is not None else {}
    )
    reported = sorted(state.metrics.items(), key=lambda item: not item[0].startswith("val"))
    values = {**dict(reported), **running}
    names = [*running, *(name for name, _ in reported if name not in running)]
    return [f"{name} {format_number(values[name])}" for name in names[:MAX_METRICS]]


def rate_text(state: RunState) -> str:
    """Return `1.2k images/s` if reported, else `3.1 steps/s`; empty if unknown."""
    if state.progress and state.progress.samples_per_s is not None:
        return f"{format_number(state.progress.samples_per_s)} {state.progress.unit or 'samples'}/s"
    per_step = state.laps.seconds_per_step
    if not per_step:
        return ""
    return (
        f"{format_number(1 / per_step)} steps/s"
        if per_step < 1
        else f"{format_number(per_step)} s/step"
    )
