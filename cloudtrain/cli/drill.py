"""The command `drill`: rehearses failures of a job before it is paid for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.follow import ProgressDisplay
from cloudtrain.cli.job_command import JobCommand, load_job, resource_options
from cloudtrain.cli.options import data_dir, job_argument, json_option, set_option
from cloudtrain.cli.output import print_json, print_message, print_output
from cloudtrain.cli.terminal import indented, progress_bar
from cloudtrain.errors import JobFailed, UsageError
from cloudtrain.issues import did_you_mean
from cloudtrain.units import parse_duration

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.submission.drills.drill import Drill
    from cloudtrain.submission.drills.scenario import Scenario
    from cloudtrain.submission.drills.scorecard import Scorecard
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
    from cloudtrain.providers.local.lifeline import runs_end_with_this_process
    from cloudtrain.submission.drills.drill import Drill, DrillOptions
    from cloudtrain.submission.drills.workplace import workplace
    from cloudtrain.submission.preflight import preflight, raise_errors, start_notes

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

    made = DrillOptions(scenarios=scenarios, timeout_seconds=seconds, tell=tell, draw=display.draw)
    with workplace(Path(plan.context.data_dir)), runs_end_with_this_process():
        drill = Drill(plan, made)
        try:
            card = drill.run()
        except KeyboardInterrupt:
            display.clear()
            _interrupted(drill, as_json=as_json)
        except JobFailed as error:
            display.clear()
            _reference_failed(drill, error)
        display.clear()
        _report(card, as_json=as_json)
    raise click.exceptions.Exit(0 if card.is_fine else 1)


def _scenarios(only: str | None) -> Sequence[Scenario]:
    """Return the named drills in our order. Raise UsageError for an unknown name."""
    from cloudtrain.submission.drills.scenario import NAMES, SCENARIOS

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

    from cloudtrain.settings import load_settings
    from cloudtrain.submission import jobs as api
    from cloudtrain.submission.drills.workplace import drill_folder

    if sys.platform != "linux":
        raise UsageError(
            "drills need Linux: they find the processes of a job in /proc",
            hint="in a container of Linux",
        )
    data = Path(load_settings(loaded.folder, {"data_dir": folder})["data_dir"]).absolute()
    place = str(drill_folder(data, loaded.spec.name))
    if loaded.spec.dependencies.vendor:
        api.vendor(loaded, api.REHEARSED_BY, as_=as_, data_dir=place, note=print_message)
    bar = progress_bar("reading source")
    return api.plan(loaded, api.REHEARSED_BY, as_=as_, data_dir=place, progress=bar)


def _show_plan(plan: Plan, scenarios: Sequence[Scenario]) -> None:
    from cloudtrain.cli.drill_view import plan_lines

    for line in plan_lines(plan, scenarios):
        print_message(line)


def _report(card: Scorecard, *, as_json: bool) -> None:
    """Store the scorecard, remove runs that show nothing new, and print it."""
    from cloudtrain.cli.drill_view import scorecard_lines
    from cloudtrain.submission.drills.workplace import remove_runs, write_scorecard

    folder = Path(card.folder)
    write_scorecard(folder, json.dumps(card.to_json(), indent=2) + "\n")
    remove_runs(folder, card.runs_to_remove)
    if as_json:
        print_json(card.to_json())
        return
    print_output("\n".join(scorecard_lines(card)))


def _interrupted(drill: Drill, *, as_json: bool) -> None:
    """Report what is known after Ctrl-C has ended the current run."""
    print_message("\ninterrupted; what was running has been ended")
    if drill.finished is not None:
        _report(drill.scorecard(interrupted=True), as_json=as_json)
    raise click.exceptions.Exit(130)


def _reference_failed(drill: Drill, error: JobFailed) -> None:
    """Raise the failure of the undisturbed job, explained as `diagnose` does."""
    from cloudtrain.cli.diagnose import diagnose_failed, diagnosis_rows
    from cloudtrain.cli.drill_view import look_at

    run = drill.reference.run if drill.reference is not None else None
    if run is None:
        raise error
    for name, text in diagnosis_rows(diagnose_failed(run, run.cached_status())):
        error.add_note(f"{name}: {text}")
    error.hint = look_at(drill.plan.context.data_dir, "logs", run.id)
    raise error
