"""The command `top`: a live screen of a run."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from cloudtrain.api.monitor import Update
from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen_run
from cloudtrain.cli.follow import progress_line
from cloudtrain.cli.options import data_dir, last_run_argument
from cloudtrain.cli.output import print_output, short_name, sparkline, table
from cloudtrain.cli.run_end import format_cost
from cloudtrain.cli.terminal import bar, full_screen, log_text, one_line
from cloudtrain.runs.forecast import cost_parts, forecast, usd_so_far
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.record import Terms, terms_of
from cloudtrain.runs.state import Curve, RunState
from cloudtrain.units import format_duration, format_number
from cloudtrain_wire.events import Usage

DRAW_SECONDS = 0.5
MAX_LOG_LINES = 200
DEFAULT_HEIGHT = 40
"""Lines of the screen without a terminal."""

MAX_CURVES = 8
MIN_LOG_LINES = 4
STALE_SECONDS = 90.0
"""Minimum age of a measurement to show the age."""


@click.command("top", epilog="Example:\n\n  cloudtrain top")
@last_run_argument
@data_dir
def top_command(folder: str | None, /, run: str | None) -> None:
    """Show RUN (default: the newest of this folder) on one screen, until it has ended.

    It shows curves, throughput, the time left, usage of each node, GPU and rank, the cost until now
    and at the end, and the last lines of the log. Ctrl-C closes it. Without a terminal the screen
    is printed once.
    """
    target = chosen_run(run, folder)
    lines: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)

    if not sys.stdout.isatty() or target.status().has_ended:
        update = next(target.watch(tail=MAX_LOG_LINES))
        print_output("\n".join(_frame(update, update.lines, target, DEFAULT_HEIGHT)))
        return

    with suppress(KeyboardInterrupt):
        _watch(target, lines)

    print_output(
        "\n".join(_frame(Update(target.cached_status(), [], []), lines, target, DEFAULT_HEIGHT))
    )


def _watch(run: Run, lines: deque[LogLine]) -> None:
    drawn_at = 0.0
    with full_screen() as draw:
        for update in run.watch(tail=MAX_LOG_LINES):
            lines.extend(update.lines)
            if time.monotonic() - drawn_at >= DRAW_SECONDS:
                drawn_at = time.monotonic()
                draw(_frame(update, lines, run, shutil.get_terminal_size().lines - 1))


def _frame(update: Update, lines: Any, run: Run, height: int) -> list[str]:
    width = shutil.get_terminal_size((100, DEFAULT_HEIGHT)).columns
    printed = [line for line in lines if not line.kind]
    found = screen(
        update.state,
        printed,
        terms_of(run.folder, update.state.instance),
        now=time.time(),
        width=width,
        height=height,
    )

    if not update.last_error:
        return found

    return [*found, f"asking again: {update.last_error}"[:width]]


def screen(
    state: RunState, lines: Sequence[LogLine], terms: Terms, *, now: float, width: int, height: int
) -> list[str]:
    """Return the lines of the screen, at most `width` wide and `height` high.

    It has at least the first two lines.
    """
    head = [
        _headline(state),
        _cost(state, terms, now),
        *_progress(state, now, width),
        "",
    ]
    machines = _machines(state, now)
    ranks = _ranks(state)
    room = height - len(head) - MIN_LOG_LINES - 1
    parts = [_curves(state, width), machines, ranks]
    shown = list(head)

    for part in parts:
        visible = _cut(part, room)
        room -= len(visible)
        shown += visible

    shown += _log(lines, max(0, height - len(shown)))
    return [one_line(line)[:width] for line in shown[:height]]


def _headline(state: RunState) -> str:
    size = f"{state.nodes} x {state.processes} ranks"
    where = state.provider
    if state.instance:
        where += f", {state.instance}"

    restarts = ""
    if state.restarts:
        restarts = f"  {state.restarts} restarts"

    return f"{state.run_id}  {state.state}  {size}  {where}{restarts}"


def _cost(state: RunState, terms: Terms, time: float) -> str:
    """Return the time of the run, and its cost: estimated, or billed after its end."""
    took = format_duration(state.seconds(time))
    if format_cost(state):
        return f"{took}  {format_cost(state)}"

    prediction = forecast(state, terms, now=time)
    so_far = usd_so_far(state, terms, time)
    if so_far is None:
        return took

    parts = [f"about {so_far:.2f} USD"]
    if prediction:
        parts = cost_parts(prediction)

    return f"{took}  {', '.join(parts)}, list price {terms.usd_per_hour:.2f} USD/h"


def _progress(state: RunState, time: float, width: int) -> list[str]:
    if state.has_ended:
        return []

    return [progress_line(state, time, width)]


def _curves(state: RunState, width: int) -> list[str]:
    """Draw each metric with its first and last value."""
    curves: dict[str, Curve] = {}
    for name, curve in state.progress_curves.items():
        label = name
        if name in state.curves:
            label = f"running {name}"

        curves[label] = curve

    curves |= state.curves
    rows = [(name, curve.values) for name, curve in curves.items() if curve.values][:MAX_CURVES]
    if not rows:
        return []

    labels = max(len(short_name(name)) for name, _ in rows)
    columns = max(10, min(80, width - labels - 24))

    lines = []
    for name, values in rows:
        heights = values
        scale = ""

        if "loss" in name and values[-1] < values[0] and all(value > 0 for value in values):
            heights = [math.log(value) for value in values]  # shows late, small improvements
            scale = " log"

        label = f"{short_name(name):<{labels}}  {format_number(values[0]):>8}"
        lines.append(f"{label} {sparkline(heights, columns)} {format_number(values[-1])}{scale}")

    return [*lines, ""]


def _machines(state: RunState, time: float) -> list[str]:
    """Return a line for each node, and below it one for each of its GPUs."""
    lines = []
    for node, usage in sorted(state.usage.items()):
        age = time - usage.time
        parts = [f"node {node}"]

        if usage.cpu_percent is not None and usage.cores:
            parts.append(
                f"cpu {_meter(usage.cpu_percent, 100 * usage.cores)} of {usage.cores} cores"
            )

        if usage.memory_gb is not None and usage.memory_total_gb:
            parts.append(f"memory {_amount(usage.memory_gb, usage.memory_total_gb)}")
        if age > STALE_SECONDS and not state.has_ended:
            parts.append(f"measured {format_duration(age)} ago")

        lines += ["  ".join(parts), *_gpus(usage)]

    if not lines:
        return []

    return [*lines, ""]


def _gpus(usage: Usage) -> list[str]:
    lines = []
    percent = usage.gpu_percent or {}
    memory = usage.gpu_memory_gb or {}
    for number in sorted(percent.keys() | memory.keys(), key=_by_number):
        parts = [f"  gpu {number}"]
        if number in percent:
            parts.append(f"busy {_meter(percent[number], 100)}")

        total = (usage.gpu_memory_total_gb or {}).get(number)
        if total:
            parts.append(f"memory {_amount(memory.get(number, 0.0), total)}")

        for values, unit in ((usage.gpu_power_w, "W"), (usage.gpu_temperature_c, "°C")):
            if number in (values or {}):
                parts.append(f"{(values or {})[number]:.0f} {unit}")

        lines.append("  ".join(parts))

    return lines


def _ranks(state: RunState) -> list[str]:
    """Return a table of the ranks."""
    cpu: dict[str, float] = {}
    memory: dict[str, float] = {}
    for usage in state.usage.values():
        cpu |= usage.rank_cpu_percent or {}
        memory |= usage.rank_memory_gb or {}

    names = sorted(cpu.keys() | memory.keys(), key=_by_number)
    if not names:
        return []

    rows = []
    for name in names:
        row = [name, "", ""]
        if name in cpu:
            row[1] = f"{cpu[name]:.0f} %"
        if name in memory:
            row[2] = f"{memory[name]:.2f} GB"

        rows.append(row)

    return [*table(rows, ("RANK", "CPU", "MEMORY")).split("\n"), ""]


def _log(lines: Sequence[LogLine], room: int) -> list[str]:
    if room <= 0:
        return []

    shown = []
    for line in list(lines)[-room:]:
        source = line.source or f"node {line.node}"
        shown.append(f"[{source}] {log_text(line.text, colours=False)}")

    return shown


def _cut(part: list[str], room: int) -> list[str]:
    """Return the part, or its beginning and the number of lines left out."""
    if len(part) <= room:
        return part
    if room < 2:
        return []
    return [*part[: room - 2], f"… {len(part) - room + 1} more lines", ""]


def _meter(value: float, full: float) -> str:
    return f"{bar(value, full, 10)} {value:.0f} %"


def _amount(used: float, total: float) -> str:
    return f"{bar(used, total, 10)} {used:.1f} of {total:.1f} GB"


def _by_number(name: str) -> tuple[int, str]:
    if name.isdecimal() and len(name) < 10:
        return (int(name), "")

    return (10**9, name)
