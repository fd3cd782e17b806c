"""The command `drill`: rehearses failures of a job before it is paid for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.api import jobs as api
from cloudtrain.api.drills.cases import CASES, Case, grace_of
from cloudtrain.api.drills.drill import Drill, Scorecard, drill_folder, workplace
from cloudtrain.api.drills.verdict import Result, Verdict
from cloudtrain.api.preflight import preflight, raise_errors, start_notes
from cloudtrain.cli.diagnose import diagnosis_rows
from cloudtrain.cli.follow import ProgressDisplay
from cloudtrain.cli.job_of_command import JobCommand, load_job, resource_options
from cloudtrain.cli.options import data_dir, job_argument, json_option, set_option
from cloudtrain.cli.output import command, count, print_json, print_message, print_output, table
from cloudtrain.cli.plan_view import headline
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.errors import JobFailed, UsageError, did_you_mean
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.processes import runs_end_with_this_process
from cloudtrain.settings import load_settings
from cloudtrain.units import format_duration, parse_duration

if TYPE_CHECKING:
    from cloudtrain.api.jobs import Job


PLAIN = "plain"
NAMES = tuple(case.name for case in CASES)
HEADER = ("drill", "verdict", "steps lost", "took")
INDENT = 11


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
    cases = _cases(only)
    try:
        seconds = parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None

    plan = _plan(_load(job, options), None if as_ == PLAIN else as_, folder)
    issues = preflight(plan)
    raise_errors(issues)
    for line in plan_lines(plan, cases):
        print_message(line)
    for text in start_notes(plan, issues):
        print_message(f"  note: {indented(text, 8)}")

    display = ProgressDisplay()

    def tell(text: str) -> None:
        display.clear()
        print_message(f"  {text}")

    drill = Drill(plan, tell=tell, draw=display.draw)
    with workplace(Path(plan.context.data_dir)), runs_end_with_this_process():
        try:
            card = drill.run(cases, seconds)
        except KeyboardInterrupt:
            display.clear()
            print_message("\ninterrupted; what was running has been ended")
            raise click.exceptions.Exit(130) from None
        except JobFailed as error:
            display.clear()
            _explain(drill, error)
            raise

        display.clear()

    if as_json:
        print_json(card.to_json())
    else:
        print_output("\n".join(scorecard_lines(card)))

    raise click.exceptions.Exit(0 if card.is_fine else 1)


def _cases(only: str | None) -> Sequence[Case]:
    """Return the named drills in our order. Raise UsageError for an unknown name."""
    if only is None:
        return CASES

    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            message = f"--only: there is no drill {name!r}{did_you_mean(name, NAMES)}"
            raise UsageError(message, hint=", ".join(NAMES))

    if not names:
        raise UsageError("--only names no drill", hint=", ".join(NAMES))

    return [case for case in CASES if case.name in names]


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
    if sys.platform != "linux":
        raise UsageError(
            "drills need Linux: they find the processes of a job in /proc",
            hint="in a container of Linux",
        )

    data = Path(load_settings(loaded.folder, {"data_dir": folder})["data_dir"]).absolute()
    place = str(drill_folder(data, loaded.spec.name))

    bar = progress_bar("reading source")
    return api.plan(loaded, api.REHEARSED_BY, as_=as_, data_dir=place, progress=bar)


def _explain(drill: Drill, error: JobFailed) -> None:
    """Explain the failure of the undisturbed job as `diagnose` does."""
    run = drill.undisturbed
    if run is None:
        return

    for name, text in diagnosis_rows(diagnose_run(run.folder, run.cached_status())):
        error.add_note(f"{name}: {text}")

    error.hint = look_at(drill.plan.context.data_dir, "logs", run.id)


def plan_lines(plan: Plan, cases: Sequence[Case]) -> Iterator[str]:
    """Yield what the drills do, and how long they take."""
    yield f"drill of {plan.spec.name}: {headline(plan)}; on this machine only, at no cost"
    yield (
        f"  1 undisturbed run, then {count(len(cases), 'drill')} of one run or two: about"
        f" {1 + len(cases)} to {1 + 2 * len(cases)} times as long as the job"
    )

    for case in cases:
        yield f"  {case.name:<16} {case.action}"

    yield f"  grace period     {grace_of(plan)}"
    if plan.spec.sweep is not None:
        yield "  note: its section sweep plays no part: the job is drilled with its own values"


def scorecard_lines(card: Scorecard) -> Iterator[str]:
    """Yield the scorecard as a table, then the details of each drill and what to change."""
    reference = card.reference
    steps = ""
    if reference.steps:
        steps = f", {max(reference.steps):g} steps"

    compared = "no files or metrics to compare runs by"
    if reference.trained.by:
        compared = f"runs are compared by {reference.trained.by}"

    yield f"{card.job}: undisturbed in {format_duration(reference.seconds)}{steps}; {compared}"
    yield ""
    yield table(map(_row, card.results), HEADER)

    for result in card.results:
        yield ""
        yield result.drill
        for name, text in _details(card, result):
            yield f"  {name:<{INDENT - 2}}{one_line(text)}"

    if card.change:
        yield ""
    for text in card.change:
        yield f"hint: {text}"


def look_at(folder: str, *words: str) -> str:
    """Return the command that looks at a run of a drill."""
    return command("--data-dir", folder, *words)


def _row(result: Result) -> tuple[str, ...]:
    if result.steps_lost is None:
        lost = "-"
    else:
        lost = f"{result.steps_lost:g}"

    took = "-"
    if result.runs:
        took = format_duration(result.seconds)

    return (result.drill, result.verdict.value, lost, took)


def _details(card: Scorecard, result: Result) -> Iterator[tuple[str, str]]:
    yield "why" if result.verdict is Verdict.SKIPPED else "done", result.injected
    if result.report:
        yield "told", result.report
    if result.report and result.remedy:
        yield "remedy", result.remedy
    if not result.runs:
        return

    if result.verdict is not Verdict.NOT_INJECTED:
        yield "then", _outcome(result)
    for text in result.change:
        yield "change", text

    if result.verdict is not Verdict.SAME:
        last = result.runs[-1]
        has_failed = last.state.state == "failed" and not last.is_overdue
        yield "look", look_at(card.folder, "diagnose" if has_failed else "logs", last.run)


def _outcome(result: Result) -> str:
    """Describe the end of the runs: restarts, and the rerun."""
    first = result.runs[0]
    if first.is_overdue:
        return "nothing, until the drill ended it by its own limit"

    parts = []
    if first.state.restarts:
        parts.append(f"{count(first.state.restarts, 'restart')} in place")

    parts.append(f"the run {first.state.state}")
    if first.state.state == "stopped":
        parts[-1] += f" within {first.state.ended - first.state.stop_requested:.1f} s"
    if result.is_rerun:
        parts.append(f"its rerun {result.runs[-1].state.state}")

    return ", ".join(parts)
