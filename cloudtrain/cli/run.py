"""The commands about one run: logs, wait, stop, fetch, rerun."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cloudtrain.cli.chosen_run import chosen, chosen_run
from cloudtrain.cli.follow import ProgressDisplay, follow
from cloudtrain.cli.options import (
    best_option,
    data_dir,
    detach_option,
    json_option,
    last_run_argument,
    profile_option,
    provider_option,
    set_option,
    yes_option,
)
from cloudtrain.cli.output import command, print_json, print_log_line, print_message, print_output
from cloudtrain.cli.run_end import EXIT_CODES, report_and_exit
from cloudtrain.cli.terminal import one_line, progress_bar
from cloudtrain.cli.watch import follow_and_exit
from cloudtrain.errors import UsageError
from cloudtrain.runs.state import RunState
from cloudtrain.submission.run import MAX_LISTED, Run, fetched_files
from cloudtrain.units import parse_duration

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


@click.command("logs", epilog="Example:\n\n  cloudtrain logs -f --rank 0 --grep loss")
@last_run_argument
@click.option(
    "--follow",
    "-f",
    "following",
    is_flag=True,
    help="Follow until the run or the sweep has ended.",
)
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only this node.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank.")
@click.option(
    "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines (before following)."
)
@click.option(
    "--since",
    metavar="T",
    help="Only lines younger than a duration (10 min) or after a time (2026-11-21T10:00).",
)
@click.option("--grep", metavar="RE", help="Only lines that match this regular expression.")
@click.option(
    "--metrics/--no-metrics", default=True, help="Also the lines of metrics and progress (default)."
)
@json_option
@data_dir
def logs_command(
    folder: str | None,
    /,
    run: str | None,
    following: bool,
    since: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the log lines of RUN (default: the newest of this folder).

    By default of all nodes and ranks. The lines of a sweep begin with the number of their trial.
    """
    since_time = None if since is None else _parse_since(since)
    target = chosen(run, folder)
    if not isinstance(target, Run):
        from cloudtrain.cli.sweep_view import print_logs

        print_logs(target, following=following, as_json=as_json, since=since_time, **options)
        return
    display = ProgressDisplay(enabled=following and not as_json and sys.stdout.isatty())
    line = None
    try:
        for line in target.logs(
            follow=following, since=since_time, waiting=display.draw, **options
        ):
            display.clear()
            print_log_line(line, as_json=as_json, names_source=options["rank"] is None)
    except KeyboardInterrupt:
        display.clear()
        raise click.exceptions.Exit(130) from None
    display.clear()
    if line is None:
        is_narrowed = any(
            value is not None and value is not True for value in (since, *options.values())
        )
        print_message(
            f"no such lines; {command('logs', target.id)} shows all of them"
            if is_narrowed
            else _no_lines(target.cached_status())
        )


def _no_lines(state: RunState) -> str:
    if not state.has_ended:
        return "no lines yet"
    if state.ref is None:
        return f"{state.run_id} was never started: {state.reason}"
    return f"{state.run_id} {state.state} and printed nothing"


def _parse_since(text: str) -> float:
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        hint = "a duration such as 10 min, or a time such as 2026-11-21T10:00"
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint=hint) from None


@click.command("wait", epilog="Example:\n\n  cloudtrain wait && cloudtrain fetch")
@last_run_argument
@click.option(
    "--timeout", metavar="T", help="Stop waiting after this time, e.g. 10 min; the run continues."
)
@json_option
@data_dir
def wait_command(
    folder: str | None, /, run: str | None, timeout: str | None, as_json: bool
) -> None:
    """Wait until RUN (default: the newest of this folder) has ended.

    Its metrics are shown, and its exit code is returned.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        follow_and_exit(target, as_json)
    try:
        seconds = None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    try:
        state = follow(
            target, tail=0, timeout=seconds, output=False, on=f"{target.id} keeps running"
        )
    except TimeoutError as error:
        print_message(str(error))
        if as_json:
            print_json(target.status().to_json())
        raise click.exceptions.Exit(5) from None
    report_and_exit(target, state, as_json)


@click.command("stop", epilog="Example:\n\n  cloudtrain stop --release")
@last_run_argument
@click.option(
    "--release",
    is_flag=True,
    help="Also release machines that are kept after it (aws.keep_alive).",
)
@json_option
@data_dir
def stop_command(folder: str | None, /, run: str | None, as_json: bool, release: bool) -> None:
    """Stop RUN (default: the newest of this folder); `rerun` continues from its checkpoint.

    Every rank gets SIGTERM, then the grace period. The shared trainer stops all ranks at the same
    step and saves; your own program decides for itself. A sweep stops all running trials. If
    several runs or sweeps of this folder are running, name one. The exit code is 0 if the run was
    stopped.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        _stop_sweep(target, as_json)
    state = target.last_known()
    owner = f", which {state.owner} has started" if state.owner else ""
    if state.has_ended:
        print_message(f"{target.id} had ended already")
    else:
        print_message(f"stopping {target.id}{owner} …")
    try:
        state = target.stop(note=lambda text: print_message(f"{target.id}: {text} …"))
    except KeyboardInterrupt:
        _say_whether_requested(target)
        raise
    if release:
        target.release()
        print_message(f"{target.id}: its machines are given back")
    report_and_exit(target, state, as_json, success="stopped")


def _stop_sweep(sweep: Sweep, as_json: bool) -> NoReturn:
    """Stop all trials of a sweep; exit with 0 if it was stopped."""
    from cloudtrain.cli.sweep_view import report, sweep_as_json

    if sweep.status().ended:
        print_message(f"{sweep.id} had ended already")
        raise click.exceptions.Exit(0)
    print_message(f"stopping {sweep.id}: no new trials start, and running trials are stopped …")
    state = sweep.stop()
    if as_json:
        print_json(sweep_as_json(state))
    report(sweep, state)
    raise click.exceptions.Exit(0 if state.state == "stopped" else EXIT_CODES[state.state])


def _say_whether_requested(target: Run) -> None:
    """Report after an interrupted `stop` whether the run was asked to stop."""
    state = target.cached_status()
    if state.has_ended:
        return
    if state.stop_requested:
        print_message(f"{target.id}: stop requested, it saves and ends; no longer waiting")
    else:
        print_message(f"{target.id}: interrupted before the answer; it may not stop")
    print_message(
        f"cloudtrain stop {target.id} waits until it has ended; cloudtrain status {target.id}"
    )


@click.command("fetch", epilog="Example:\n\n  cloudtrain fetch ../result --checkpoints")
@last_run_argument
@click.argument("target", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@best_option
@click.option("--checkpoints", is_flag=True, help="Also copy checkpoints.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace the files of an earlier fetch in the same folder.",
)
@json_option
@data_dir
def fetch_command(
    folder: str | None,
    /,
    run: str | None,
    target: Path | None,
    best: bool,
    checkpoints: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Copy model and output of RUN (default: the newest of this folder) into DIR.

    DIR is by default a folder named like the run. A sweep means its best trial.

    A .gitignore in DIR keeps it out of commits and of the next submit.
    """
    # An id has no slash and no leading dot: it is DIR.
    if run is not None and target is None and ("/" in run or run.startswith(".")):
        target = Path(run)
        run = None
    source = chosen_run(run, folder, best=best)
    notes: list[str] = []
    bar = progress_bar("fetching", bytes_=True)
    path = source.fetch(
        target, checkpoints=checkpoints, force=force, progress=bar, note=notes.append
    )
    for note in notes[:MAX_LISTED]:
        print_message(f"note: {note}")
    if len(notes) > MAX_LISTED:
        print_message(
            f"note: and {len(notes) - MAX_LISTED} more were left out; --json names them all"
        )
    if not source.cached_status().has_ended:
        print_message(f"run {source.id} has not ended: some of these files may be incomplete")
    copied = fetched_files(path)
    if as_json:
        print_json({"run": source.id, "folder": str(path), "files": copied, "left_out": notes})
    else:
        print_output("\n".join(map(one_line, copied)))


@click.command("rerun", epilog="Example:\n\n  cloudtrain rerun --set limits.max_runtime='2 h'")
@last_run_argument
@best_option
@set_option
@provider_option
@profile_option
@yes_option
@click.option("--fresh", is_flag=True, help="Ignore checkpoints, and start from the beginning.")
@detach_option
@json_option
@data_dir
def rerun_command(
    folder: str | None, /, run: str | None, as_json: bool, detach: bool, **options: Any
) -> None:
    """Run source and spec of RUN (default: the newest of this folder) again, under a new id.

    A run that did not succeed continues from its last checkpoint.
    """
    from cloudtrain.cli.submit import start
    from cloudtrain.submission.context import archive_of
    from cloudtrain.submission.preflight import preflight, raise_errors

    old = chosen_run(run, folder, best=options["best"])
    plan = old.plan_again(
        options["overrides"], fresh=options["fresh"], provider=options["provider"]
    )
    issues = preflight(plan)
    raise_errors(issues)
    print_message(
        f"again after {old.id}"
        + (f", from its checkpoints in {plan.context.resume_from}" * bool(plan.context.resume_from))
    )
    start(
        plan,
        issues,
        archive=archive_of(plan),
        detach=detach,
        as_json=as_json,
        after=old.id,
        yes=options["yes"],
    )
