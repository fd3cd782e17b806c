"""The output of `cloudtrain check --forecast` and `--memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.submission.first_steps import FirstSteps
    from cloudtrain.submission.jobs import Job
    from cloudtrain.submission.memory import MemoryReport

DEFAULT_SECONDS = 30
MAX_SECONDS = 3600
UNPROVEN = "CUDA, NCCL and libraries by their documentation, not measured on this GPU"


class Seconds(click.ParamType[int]):
    """The optional value of `--forecast`; click may take the next word for it."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return whole seconds."""
        try:
            seconds = int(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a number of seconds; put JOB before --forecast", param, ctx
            )
        if not 1 <= seconds <= MAX_SECONDS:
            self.fail(f"{seconds} is not between 1 and {MAX_SECONDS} seconds", param, ctx)
        return seconds


def first_steps_of(job: Job, plan: Plan, seconds: int) -> FirstSteps:
    """Run the first steps here, with a progress line.

    Ctrl-C ends them, and exits with 130.
    """
    from cloudtrain.cli.follow import ProgressDisplay
    from cloudtrain.cli.output import print_message
    from cloudtrain.submission.first_steps import try_first_steps
    from cloudtrain.units import format_duration

    print_message(
        f"the job trains here for {format_duration(seconds)}; its files are removed afterwards"
    )
    display = ProgressDisplay()
    try:
        return try_first_steps(job, plan, seconds, display.draw)
    except KeyboardInterrupt:
        display.clear()
        print_message("interrupted; the job was ended, and its files are removed")
        raise click.exceptions.Exit(130) from None
    finally:
        display.clear()


def forecast_lines(first_steps: FirstSteps) -> list[str]:
    """Return the time of the whole job here, and its limit if that is too low."""
    from cloudtrain.runs.forecast import limit_warning, shown
    from cloudtrain.units import format_duration

    if first_steps.measured is not None:
        lines = [
            f"forecast: not needed: the whole job took {format_duration(first_steps.measured)} here"
        ]
    elif first_steps.forecast is None:
        lines = [f"forecast: none: {first_steps.reason}"]
    else:
        basis = f"by {first_steps.forecast.seen_steps} of {first_steps.forecast.steps} steps"
        where = "this machine's CPU" if first_steps.on_cpu else "this machine"
        lines = [f"forecast: on {where} {shown(first_steps.forecast)}; {basis}"]
        if warning := limit_warning(first_steps.forecast):
            lines.append(f"  {warning}")
    return lines


def memory_lines(report: MemoryReport) -> list[str]:
    """Return the need with its interval, the comparison with the machine, and remedies."""
    from cloudtrain.submission.memory import gib

    if report.reason:
        return [f"memory: no estimate: {report.reason}"]
    of = "GPU" if report.gpu else "process"
    lines = [
        f"memory per {of}: about {gib(report.expected)} ({gib(report.low)} to"
        f" {gib(report.high)}){_against(report)}"
    ]
    parts = ", ".join(
        f"{name} {size / 2**20:,.0f} MiB" for name, size in (report.parts or {}).items()
    )
    remainder = f"; the rest: {UNPROVEN}" if report.gpu else "; the rest: the process with torch"
    lines.append(f"  tensors: {parts}{remainder}")
    if report.remedies:
        lines.append("  what fits:")
        lines += [f"    {remedy}" for remedy in report.remedies]
    elif report.verdict not in ("fits", ""):
        lines.append("  no sure remedy: smaller micro-batches, recomputing and sharding were tried")
    return lines


def _against(report: MemoryReport) -> str:
    from cloudtrain.submission.memory import gib

    if not report.verdict:
        return "; how much the machine has is not known here"
    has = f" of {gib(report.memory)}{f' ({report.gpu})' if report.gpu else ''}"
    if report.verdict == "fits":
        return f"{has}: fits, at least {gib(report.memory - report.high)} are free"
    if report.verdict == "may not fit":
        return f"{has}: may not fit, by up to {gib(report.high - report.memory)}"
    return f"{has}: does not fit, by about {gib(report.expected - report.memory)}"
