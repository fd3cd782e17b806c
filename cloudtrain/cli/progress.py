"""The progress line of a run: what it is doing, how far it has got, how fast, and when it will be
done.
"""

from __future__ import annotations

from cloudtrain.cli.terminal import bar, one_line
from cloudtrain.runs.forecast import seconds_left
from cloudtrain.runs.metric_lines import position_parts
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration, format_number

MAX_METRICS = 4

_Part = tuple[int, str]
"""A part of the line, after its rank: where the line is too long, the parts of the highest ranks
are left out.
"""


def progress_line(state: RunState, now: float, width: int) -> str:
    """The line, at most `width` characters long. `now`: a Unix timestamp."""
    elapsed = format_duration(state.seconds(now))
    parts = _training_parts(state, now)
    if not parts:
        return one_line(_before_training(state, now, elapsed))[:width]
    parts = [*_activity_parts(state, now), *parts, (1, elapsed)]
    while _length(parts) > width and len(parts) > 1:
        least = max(rank for rank, _ in parts)
        at = max(index for index, (rank, _) in enumerate(parts) if rank == least)
        del parts[at]
    return one_line("  ".join(text for _, text in parts))[:width]


def _length(parts: list[_Part]) -> int:
    return len(one_line("  ".join(text for _, text in parts)))


def activity_text(state: RunState, now: float) -> str:
    """`restoring for 12 s`; empty where the run is training, or has not begun."""
    doing = state.activity
    if doing is None:
        return ""
    return doing.activity + (
        f" for {format_duration(now - doing.time)}" if now - doing.time >= 1 else ""
    )


def _activity_parts(state: RunState, now: float) -> list[_Part]:
    text = activity_text(state, now)
    return [(0, text)] if text else []


def _before_training(state: RunState, now: float, elapsed: str) -> str:
    if state.state == "running" and state.activity:
        return activity_text(state, now)
    if state.state != "running":
        since = format_duration(max(0.0, now - state.phase_since)) if state.phase else elapsed
        return f"{state.phase or state.state}  {since}"
    return f"{len(state.ranks)} of {state.nodes * state.processes} ranks up  {elapsed}"


def _training_parts(state: RunState, now: float) -> list[_Part]:
    """What is known of the training; nothing before the first report."""
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
    eta = seconds_left(state, now)
    if eta is not None:
        parts.append((1, f"{format_duration(eta)} left"))
    return parts


def latest_metrics(state: RunState) -> list[str]:
    """`loss 0.25`, `val_accuracy 0.93`: the running loss, then what was reported, the validation
    first.
    """
    running = (
        {"loss": state.progress.loss} if state.progress and state.progress.loss is not None else {}
    )
    reported = sorted(state.metrics.items(), key=lambda item: not item[0].startswith("val"))
    values = {**dict(reported), **running}
    names = [*running, *(name for name, _ in reported if name not in running)]
    return [f"{name} {format_number(values[name])}" for name in names[:MAX_METRICS]]


def rate_text(state: RunState) -> str:
    """`1.2k images/s` where that is reported, else `3.1 steps/s` by the times of the reports; empty
    where unknown.
    """
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
