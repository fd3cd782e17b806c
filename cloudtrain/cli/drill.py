"""The command `drill`: rehearses failures of a job before it is paid for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.diagnose import diagnosis_rows
from cloudtrain.cli.follow import ProgressDisplay
from cloudtrain.cli.options import (
    JobCommand,
    data_dir,
    job_argument,
    json_option,
    load_job,
    resource_options,
    set_option,
)
from cloudtrain.cli.output import command, count, print_json, print_message, print_output, table
from cloudtrain.cli.plan_view import headline
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.errors import JobFailed, UsageError, did_you_mean
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.processes import runs_end_with_this_process
from cloudtrain.settings import load_settings
from cloudtrain.submission import jobs as api
from cloudtrain.submission.drills.drill import Drill, DrillOptions
from cloudtrain.submission.drills.scorecard import (
    DrillResult,
    Scorecard,
    drill_folder,
    workplace,
    write_scorecard,
)
from cloudtrain.submission.drills.verdict import (
    DRILLED_HANG_SECONDS,
    NAMES,
    SCENARIOS,
    Fault,
    Scenario,
    Verdict,
    grace_of,
)
from cloudtrain.submission.preflight import preflight, raise_errors, start_notes
from cloudtrain.units import format_duration, parse_duration

if TYPE_CHECKING:
    from cloudtrain.submission.jobs import Job


PLAIN = "plain"


@click.command(
    "drill",
    cls=JobCommand,
    epilog="""\b
Examples:
  cloudtrain drill                                   all drills of job.yaml
  cloudtrain drill --set args.epochs=1               of a job that is made short for it
  cloudtrain drill --only rank-killed,sigterm --as aws
  cloudtrain drill train.py --processes 2 -- --epochs 3""",
)
@resource_options
@click.option(
    "--as",
    "as_",
    metavar="NAME",
    help="Apply the rules of a cloud: aws, azure or plain (default).",
)
@job_argument
@set_option
@click.option("--only", metavar="NAMES", help="Only these drills, such as rank-killed,sigterm.")
@click.option(
    "--timeout",
    default="10 min",
    metavar="T",
    help="Maximum time of the undisturbed job (default: 10 min).",
)
@json_option
@data_dir
def drill_command(
    folder: str | None,
    /,
    job: Path,
    as_: str | None,
    only: str | None,
    timeout: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Rehearse failures of JOB (default: job.yaml) on this machine, before it is paid for.

    The job runs once undisturbed, then once or twice for each drill: a rank is killed, a node lost,
    the job stopped, the disk full, the newest checkpoint torn, or a loader stalls. A scorecard
    shows which of them the job survives with the same parameters, how many steps were lost, and
    what to change. Exit code 0: it recovers from all of them, or fails with a clear error.
    """
    scenarios = _scenarios(only)
    seconds = _seconds(timeout)
    plan = _plan(_load(job, options), None if as_ == PLAIN else as_, folder)
    issues = preflight(plan)
    raise_errors(issues)
    _show_plan(plan, scenarios)

    for text in start_notes(plan, issues):
        print_message(f"  note: {indented(text, 8)}")

    display = ProgressDisplay()

    def tell(text: str) -> None:
        display.clear()
        print_message(f"  {text}")

    made = DrillOptions(
        scenarios=scenarios,
        timeout_seconds=seconds,
        tell=tell,
        draw=display.draw,
    )
    with workplace(Path(plan.context.data_dir)), runs_end_with_this_process():
        drill = Drill(plan, made)
        try:
            card = drill.run()
        except KeyboardInterrupt:
            display.clear()
            print_message("\ninterrupted; what was running has been ended")
            raise click.exceptions.Exit(130) from None
        except JobFailed as error:
            display.clear()
            _reference_failed(drill, error)

        display.clear()
        _report(card, as_json=as_json)

    raise click.exceptions.Exit(0 if card.is_fine else 1)


def _scenarios(only: str | None) -> Sequence[Scenario]:
    """Return the named drills in our order. Raise UsageError for an unknown name."""
    if only is None:
        return SCENARIOS

    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"--only: there is no drill {name!r}{did_you_mean(name, NAMES)}",
                hint=", ".join(NAMES),
            )

    if not names:
        raise UsageError("--only names no drill", hint=", ".join(NAMES))

    return [scenario for scenario in SCENARIOS if scenario.name in names]


def _seconds(timeout: str) -> float:
    try:
        return parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None


def _load(source: Path, options: dict[str, Any]) -> Job:
    """Load the job with local checkpoints: a drill writes into no bucket."""
    loaded = load_job(source, options)
    if loaded.spec.checkpoints.uri is None:
        return loaded
    return load_job(
        source, {**options, "overrides": (*options["overrides"], "checkpoints.uri=null")}
    )


def _plan(loaded: Job, as_: str | None, folder: str | None) -> Plan:
    """Plan the undisturbed run, in the data folder of this job's drills."""
    import sys

    if sys.platform != "linux":
        raise UsageError(
            "drills need Linux: they find the processes of a job in /proc",
            hint="in a container of Linux",
        )

    data = Path(load_settings(loaded.folder, {"data_dir": folder})["data_dir"]).absolute()
    place = str(drill_folder(data, loaded.spec.name))

    bar = progress_bar("reading source")
    return api.plan(loaded, api.REHEARSED_BY, as_=as_, data_dir=place, progress=bar)


def _show_plan(plan: Plan, scenarios: Sequence[Scenario]) -> None:
    for line in plan_lines(plan, scenarios):
        print_message(line)


def _report(card: Scorecard, *, as_json: bool) -> None:
    """Store the scorecard, and print it."""
    folder = Path(card.folder)
    write_scorecard(folder, json.dumps(card.to_json(), indent=2) + "\n")

    if as_json:
        print_json(card.to_json())
        return

    print_output("\n".join(scorecard_lines(card)))


def _reference_failed(drill: Drill, error: JobFailed) -> None:
    """Raise the failure of the undisturbed job, explained as `diagnose` does."""
    run = drill.reference.run if drill.reference is not None else None
    if run is None:
        raise error

    for name, text in diagnosis_rows(diagnose_run(run.folder, run.cached_status())):
        error.add_note(f"{name}: {text}")

    error.hint = look_at(drill.plan.context.data_dir, "logs", run.id)
    raise error


_HEADER = ("drill", "verdict", "steps lost", "took")
_INDENT = 11


def plan_lines(plan: Plan, scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Yield what the drills do, and how long they take."""
    least = 1 + len(scenarios)
    most = 1 + 2 * len(scenarios)
    yield f"drill of {plan.spec.name}: {headline(plan)}; on this machine only, at no cost"
    drills = count(len(scenarios), "drill")
    yield (
        f"  1 undisturbed run, then {drills} of one run or two: about {least} to {most} times as"
        " long as the job"
    )

    for scenario in scenarios:
        yield f"  {scenario.name:<16} {scenario.action}"

    if any(scenario.fault is Fault.SIGTERM for scenario in scenarios):
        yield f"  grace period     {grace_of(plan)}"

    stalls = any(scenario.fault is Fault.LOADER_STALLED for scenario in scenarios)
    if stalls and plan.spec.launcher != "none":
        hang = plan.spec.limits.hang
        shown = "0: never" if hang == 0 else f"{min(hang, DRILLED_HANG_SECONDS)} s for the drill"
        yield f"  limits.hang      {shown}"

    if plan.spec.sweep is not None:
        yield "  note: its section sweep plays no part: the job is drilled with its own values"


def scorecard_lines(card: Scorecard) -> Iterator[str]:
    """Yield the scorecard as a table, then the details of each drill and what to change."""
    history = card.reference.history
    compared = card.reference.trained.by
    steps = "" if history.last_step is None else f", {history.last_step:g} steps"
    yield f"{card.job}: undisturbed in {format_duration(card.reference_seconds)}{steps}; " + (
        f"runs are compared by {compared}" if compared else "no files or metrics to compare runs by"
    )
    yield ""
    yield table(map(_row, card.results), _HEADER)

    for result in card.results:
        yield ""
        yield from _details(card, result)

    if card.advice:
        yield ""

    for text in card.advice:
        yield f"hint: {text}"


def look_at(folder: str, *words: str) -> str:
    """Return the command that looks at a run of a drill."""
    return command("--data-dir", folder, *words)


def _row(result: DrillResult) -> tuple[str, ...]:
    finding = result.finding
    lost = "-" if finding.steps_lost is None else f"{finding.steps_lost:g}"

    return (
        result.scenario.name,
        finding.verdict.value,
        lost,
        format_duration(result.seconds) if result.runs else "-",
    )


def _details(card: Scorecard, result: DrillResult) -> Iterator[str]:
    finding = result.finding
    rows = []
    rows.append(("why" if finding.verdict is Verdict.SKIPPED else "done", result.injected))

    if finding.report:
        rows.append(("told", finding.report))
    if finding.report and result.remedy:
        rows.append(("remedy", result.remedy))
    if result.runs and finding.verdict is not Verdict.NOT_INJECTED:
        rows.append(("then", _outcome(result)))

    rows += [("change", text) for text in result.advice]
    if result.runs and finding.verdict is not Verdict.SAME:
        last = result.runs[-1]
        rows.append(
            (
                "look",
                look_at(
                    card.folder,
                    "diagnose" if last.state.state == "failed" and not last.overdue else "logs",
                    last.run,
                ),
            )
        )

    yield result.scenario.name
    for name, text in rows:
        yield f"  {name:<{_INDENT - 2}}{one_line(text)}"


def _outcome(result: DrillResult) -> str:
    """Describe the end of the runs: restarts, and the rerun."""
    first = result.runs[0]
    last = result.runs[-1]

    if first.overdue:
        return "nothing, until the drill ended it by its own limit"

    parts = []
    if first.state.restarts:
        parts.append(f"{count(first.state.restarts, 'restart')} in place")

    if first.state.state != "succeeded":
        seconds = first.history.stopping_seconds
        duration = (
            f" within {seconds:.1f} s"
            if seconds is not None and first.state.state == "stopped"
            else ""
        )
        parts.append(f"the run {first.state.state}{duration}")

    if result.finding.rerun:
        parts.append(f"its rerun {last.state.state}")
    elif first.state.state == "succeeded":
        parts.append("the run succeeded")

    return ", ".join(parts)
