"""Log lines for reported metrics and progress: `step 100 loss 0.25`."""

from __future__ import annotations

from cloudtrain.units import format_number
from cloudtrain_launcher.events import Event, Metrics, Progress


def metric_line(event: Event) -> bytes | None:
    """Return `[rank 0 metrics] step 100 loss 0.25` for an event, or None without numbers."""
    if isinstance(event, Metrics):
        kind = "metrics"
        text = metrics_text(event)
    elif isinstance(event, Progress):
        kind = "progress"
        text = progress_text(event)
    else:
        return None
    who = f"rank {event.rank}" if event.rank >= 0 else f"node {event.node}"
    line = f"[{who} {kind}] {text}".replace("\n", " ").replace("\r", " ")
    return line.encode("utf-8", "backslashreplace") if text else None


def metrics_text(event: Metrics) -> str:
    """Return `epoch 1  step 100  loss 0.25  val_accuracy 0.93`."""
    where = [
        f"{name} {value}"
        for name, value in (("epoch", event.epoch), ("step", event.step))
        if value is not None
    ]
    return "  ".join(
        [*where, *(f"{name} {format_number(value)}" for name, value in event.values.items())]
    )


def progress_text(event: Progress) -> str:
    """Return `epoch 1/3  step 100/300  loss 0.25  1.2k samples/s`."""
    parts = position_parts(event)
    if event.loss is not None:
        parts.append(f"loss {format_number(event.loss)}")
    if event.samples_per_s is not None:
        parts.append(f"{format_number(event.samples_per_s)} {event.unit or 'samples'}/s")
    return "  ".join(parts)


def position_parts(progress: Progress) -> list[str]:
    """Return `epoch 1/3` and `step 100/300` if reported, with `?` for an unknown total."""
    parts = (("epoch", progress.epoch, progress.epochs), ("step", progress.step, progress.steps))
    return [
        f"{name} {position}/{'?' if total is None else total}"
        for name, position, total in parts
        if position is not None
    ]
