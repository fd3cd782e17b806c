"""The option `diagnose --scaling`: runs a job with several numbers of ranks, and draws a curve."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from cloudtrain.cli.chosen_run import chosen_run
from cloudtrain.cli.follow import View
from cloudtrain.cli.output import command, count, print_json, print_message, print_output, table
from cloudtrain.cli.plan_view import headline
from cloudtrain.cli.submit import confirm_cost
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.state import RunState
from cloudtrain.spec.sources import is_program
from cloudtrain.submission import jobs as api
from cloudtrain.submission.context import archive_of, pack_source
from cloudtrain.submission.preflight import start_notes
from cloudtrain.submission.run import Run
from cloudtrain.submission.scaling import (
    MakePlan,
    Measurement,
    Point,
    ScalingCurve,
    check_reports,
    cores_shared,
    measurement_of,
    scaled_plans,
    threads_each,
    verdict,
)
from cloudtrain.submission.submit import submit
from cloudtrain.units import format_number

BAR = 32
"""Width of the largest ideal speed-up, in characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRequest:
    """A request for a scaling curve."""

    target: str | None
    """A run, or a job's file, folder or script."""
    sizes: tuple[int, ...]
    provider: str | None
    data_dir: str | None


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks, `1,2,4`, and sort them. UsageError says what is wrong."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 10_000 for word in words):
        raise UsageError(
            f"--scaling {text}: is not a list of numbers of ranks", hint="--scaling 1,2,4"
        )

    sizes = tuple(sorted({int(word) for word in words}))
    if len(sizes) < 2:
        raise UsageError(
            "--scaling compares two numbers of ranks at least",
            hint=f"--scaling 1,{max(2, sizes[0])}",
        )

    return sizes


def show_scaling(request: ScalingRequest, *, yes: bool, as_json: bool) -> None:
    """Measure the curve, and show it; after Ctrl-C show what was measured.

    The exit code is 1 if nothing could be measured.
    """
    make, base, earlier, archive = _job(request)
    check_reports(base, earlier)
    plans = scaled_plans(make, base, request.sizes)

    notes = _announce(base, plans)
    if not yes:
        _confirm(plans)
    archive = archive or pack_source(plans[max(plans)], progress_bar("packing source"))
    with _every_end_is_an_interrupt():
        measured, is_interrupted = _measure(plans, archive)

    if not any(measurement.windows for measurement in measured.values()):
        _nothing_measured(measured, is_interrupted)

    curve = ScalingCurve(list(measured.values()))
    rows = [("verdict", verdict(curve, "GPU" if base.gpus else "process"))]
    rows += [(f"failed {ranks}", why) for ranks, why in curve.failures.items()]
    rows += [("note", note) for note in notes]

    if as_json:
        texts = {
            "verdict": rows[0][1],
            "notes": notes,
            "interrupted": is_interrupted,
        }
        print_json({"job": base.spec.name, **curve.to_json(), **texts})
    else:
        print_output(_drawn(curve))
        for name, text in rows:
            print_output(f"  {name:<11} {one_line(text)}")

    if is_interrupted:
        raise click.exceptions.Exit(130)


def _job(request: ScalingRequest) -> tuple[MakePlan, Plan, Run | None, Path | None]:
    """Return how to plan the job, its base plan, its run if any, and its packed source."""
    path = Path(request.target or "")
    is_spec = path.suffix in (".yaml", ".yml")  # a run id never ends like this
    if request.target and (is_spec or _is_job(path)):

        def make(overrides: Sequence[str]) -> Plan:
            return api.plan(api.load(path, overrides), request.provider, data_dir=request.data_dir)

        return make, make(()), None, None

    if request.target and _is_file(path):
        hint = "it takes a run, a job.yaml, a folder that has one, or a script"
        raise UsageError(f"--scaling runs a job, and {request.target} is none", hint=hint)

    run = chosen_run(request.target, request.data_dir)

    def replan(overrides: Sequence[str]) -> Plan:
        return run.plan_again(tuple(overrides), fresh=True, provider=request.provider)

    base = replan(("checkpoints.uri=null",))
    return replan, base, run, archive_of(base)


def _is_job(path: Path) -> bool:
    with suppress(OSError, ValueError):  # too long for a file name
        return path.is_dir() or (path.exists() and is_program(path))

    return False


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file()

    return False


def _announce(base: Plan, plans: dict[int, Plan]) -> list[str]:
    """Print what will run, and return the notes for the result."""
    print_message(
        f"measures {base.spec.name} with {', '.join(map(str, plans))} ranks, one after the other"
    )
    if (threads := threads_each(base, max(plans))) is not None:
        print_message(f"  each rank computes with {count(threads, 'thread')}")

    for ranks, plan in plans.items():
        estimate = plan.target.cost_estimate
        per_hour = estimate.usd_per_hour if estimate and not plan.is_rehearsal else None
        price = f", {per_hour:.2f} USD/h" if per_hour else ""
        print_message(f"  {count(ranks, 'rank'):<11} {one_line(headline(plan))}{price}")

    if _is_billed(plans):
        worst = _worst_usd(plans)
        most = (
            "unknown: no price is known"
            if worst is None
            else f"at most {worst:.2f} USD together, by their limits"
        )
        print_message(f"  cost        {most}")

    cores = cores_shared(base)
    crowded = [str(ranks) for ranks in plans if cores is not None and ranks > cores]
    notes = (
        [f"{' and '.join(crowded)} ranks share {count(cores or 1, 'core')}: they cannot scale"]
        if crowded
        else []
    )

    largest = plans[max(plans)]
    for note in (*start_notes(largest, largest.issues), *notes):
        print_message(f"  note: {indented(note, 8)}")

    return notes


def _is_billed(plans: dict[int, Plan]) -> bool:
    return any(
        plan.target.cost_estimate is not None and not plan.is_rehearsal for plan in plans.values()
    )


def _worst_usd(plans: dict[int, Plan]) -> float | None:
    costs = [
        plan.target.cost_estimate.worst_usd if plan.target.cost_estimate else None
        for plan in plans.values()
    ]
    known_costs = [usd for usd in costs if usd is not None]
    return sum(known_costs) if len(known_costs) == len(costs) else None


def _confirm(plans: dict[int, Plan]) -> None:
    if _is_billed(plans):
        confirm_cost(Path(next(iter(plans.values())).context.folder), _worst_usd(plans))


def _measure(plans: dict[int, Plan], archive: Path) -> tuple[dict[int, Measurement], bool]:
    """Return the measurements by number of ranks, and whether Ctrl-C ended them.

    The interrupted run is stopped.
    """
    measured: dict[int, Measurement] = {}
    for ranks, plan in plans.items():
        print_message(f"{plan.run_id}  {count(ranks, 'rank')}")
        try:
            run, state = _run(plan, archive)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be gone
                print_message(f"\ninterrupted: stops {plan.run_id}")

            _stop(plan)
            return measured, True
        except CloudtrainError as error:
            print_message(f"  {indented(error.render(), 2)}")
            one = Measurement(ranks=ranks, failure=error.message, run=plan.run_id)
        else:
            one = measurement_of(run, state, ranks, _usd_per_hour(plan))

        print_message(
            f"  {one_line(one.failure) if one.failure else f'{format_number(one.rate)} samples/s'}"
        )
        measured[ranks] = one

    return measured, False


@contextmanager
def _every_end_is_an_interrupt() -> Iterator[None]:
    """Treat SIGTERM (a cancelled CI job) and SIGHUP (a closed terminal) like Ctrl-C.

    Otherwise the current run costs money until its limit.
    """
    ends = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}

    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(plan: Plan, archive: Path) -> tuple[Run, RunState]:
    """Run a plan to its end."""
    sending = progress_bar("sending source", bytes_=True)
    pushing = progress_bar("pushing image", bytes_=True)
    run = Run(submit(plan, archive=archive, sending=sending, pushing=pushing))
    view = View(run, output=False)

    try:
        for update in run.watch():
            view.show(update)
    finally:
        view.clear()

    return run, update.state


def _stop(plan: Plan) -> None:
    """Stop the interrupted run, if it was started."""
    from cloudtrain.submission.lookup import find_run

    try:
        find_run(plan.run_id, data_dir=plan.context.data_dir).stop()
    except (CloudtrainError, KeyboardInterrupt):
        print_message(f"whether it has ended is not known: {command('status', plan.run_id)}")


def _usd_per_hour(plan: Plan) -> float | None:
    estimate = plan.target.cost_estimate
    return estimate.usd_per_hour if estimate is not None and not plan.is_rehearsal else None


def _nothing_measured(measured: dict[int, Measurement], is_interrupted: bool) -> NoReturn:
    if is_interrupted:
        print_message("interrupted before the first measurement")
        raise click.exceptions.Exit(130)

    last = next(iter(measured.values())).run
    message = "nothing could be measured with any number of ranks"
    raise CloudtrainError(
        message, hint=f"{command('diagnose', last)} says why the first one failed"
    )


def _drawn(curve: ScalingCurve) -> str:
    """Return the table; each bar fills the length of the ideal speed-up."""
    priced = any(point.usd_per_million for point in curve.points)
    header = [
        "ranks",
        "samples/s",
        "speed-up",
        "efficiency",
        "communication",
        *["USD per million"] * priced,
        "",
    ]
    most = max(curve.measured) / curve.base

    return table([_cells(point, curve, most, priced=priced) for point in curve.points], header)


def _cells(point: Point, curve: ScalingCurve, most: float, *, priced: bool) -> list[str]:
    ideal = point.ranks / curve.base
    length = round(BAR * ideal / most)
    filled = min(length, round(BAR * point.speedup / most))
    usd = f"{point.usd_per_million:.2f}" if point.usd_per_million else "not known"

    return [
        str(point.ranks),
        format_number(point.samples_per_s),
        f"{point.speedup:.2f}",
        f"{point.efficiency:.2f}",
        "" if point.communication is None else f"{point.communication:.0%}",
        *[usd] * priced,
        "━" * filled + "─" * (length - filled),
    ]
