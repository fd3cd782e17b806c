"""The commands about runs: list, status, logs, wait, stop, fetch, rerun."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from cloudtrain.api.lookup import adopt, find_run, list_runs
from cloudtrain.api.run import MAX_NAMED, Run
from cloudtrain.cli.follow import conclude, money, shown, source_line
from cloudtrain.cli.options import (
    data_dir,
    json_option,
    provider_option,
    run_argument,
    set_option,
)
from cloudtrain.cli.output import (
    ago,
    command,
    count,
    learning_curves,
    number,
    paint,
    print_json,
    say,
    table,
    tell,
)
from cloudtrain.cli.terminal import indented, one_line, progress_bar, write_json, write_log
from cloudtrain.declaration import rehearsed_by
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.runs.failure import explain
from cloudtrain.runs.state import STATES, RunState
from cloudtrain.units import format_duration, parse_duration

SHOWN = 20


@click.command("list", epilog="Example:\n\n  cloudtrain list --state failed --json")
@click.option("--all", "everything", is_flag=True, help=f"All runs, not only the last {SHOWN}.")
@provider_option
@click.option("--state", type=click.Choice((*STATES, "damaged")), help="Only runs in this state.")
@json_option
@data_dir
def list_command(
    folder: str | None, /, everything: bool, state: str | None, provider: str | None, as_json: bool
) -> None:
    """List runs, the newest first. With --provider aws or azure also those that other machines have started."""
    if provider is not None:
        adopt(provider, data_dir=folder, whole=everything)
    runs = [
        run
        for run in list_runs(data_dir=folder)
        if state in (None, run["state"]) and provider in (None, run["provider"])
    ]
    if as_json:
        print_json(runs)
        return
    if not runs:
        say(f"no runs{f' in state {state}' if state else ''} yet; {command('submit')} starts one")
        return
    shown = runs if everything else runs[:SHOWN]
    now = time.time()
    rows = []
    foreign = any(run["owner"] for run in shown)
    for run in shown:
        begin = run["started"] or run["created"]
        took = format_duration(max(0.0, (run["ended"] or now) - begin))
        owner = (run["owner"] or "you",) if foreign else ()
        rows.append(
            (
                run["run"],
                _shown_state(run),
                *owner,
                run["provider"] + (f" as {run['contract']}" if _is_rehearsal(run) else ""),
                f"{run['nodes']}x{run['processes']}",
                took,
                ago(run["created"], now) if run["created"] else "",
            )
        )
    tell(table(rows, ("RUN", "STATE", *(("OWNER",) if foreign else ()), "PROVIDER", "NODES", "TOOK", "SUBMITTED")))
    for run in runs:
        if (run["kept_until"] or 0) > now:
            say(f"{run['run']}: {_kept(run['run'], run['kept_until'] - now)}")
    if len(shown) < len(runs):
        say(f"({len(runs) - len(shown)} older ones: {command('list', '--all')})")


def _shown_state(run: dict[str, Any]) -> str:
    """A submit that was refused made no job that could have failed."""
    never = run["state"] == "failed" and not run["submitted"]
    return "not started" if never else paint(run["state"])


def _kept(run_id: str, seconds: float) -> str:
    """That its machines are still there, and what to do about it."""
    release = command("stop", run_id, "--release")
    return f"its machines are kept, and billed, for {format_duration(seconds)} more; {release} gives them back"


def _is_rehearsal(run: dict[str, Any]) -> bool:
    return rehearsed_by(run["provider"], run["contract"]) is not None


@click.command("status", epilog="Example:\n\n  cloudtrain status last --json")
@run_argument
@json_option
@data_dir
def status_command(folder: str | None, /, run: str, as_json: bool) -> None:
    """Show how RUN stands: an id, a unique beginning of one, or `last`."""
    found = find_run(run, data_dir=folder)
    trouble = None
    try:
        state = found.status()
    except CloudError as error:  # what is known here is shown all the same
        state, trouble = found.recorded(), error
    if as_json:
        if trouble is not None:
            raise trouble
        print_json({**state.to_json(), "folder": str(found.folder.path), "results": dict(found.places())})
        return
    size = f"{count(state.nodes, 'node')} x {count(state.processes, 'process')}"
    as_what = f" as {state.contract}" if _is_rehearsal(state.to_json()) else ""
    tell(f"{found.id}  {paint(state.state)}  {size}, {one_line(state.provider + as_what)}")
    for name, text in _status_rows(found, state):
        tell(f"  {name:<11} {indented(text, 14)}")
    if trouble is not None:
        say("that is what was last seen; asking again failed:")
        raise trouble


def _status_rows(run: Run, state: RunState) -> list[tuple[str, str]]:
    rows = [
        *([("owner", state.owner)] if state.owner else []),
        ("submitted", ago(state.created, time.time())),
        ("runs" if not state.ended else "took", format_duration(state.seconds(time.time()))),
    ]
    if state.instance:
        rows.append(("machines", f"{state.nodes} x {state.instance}"))
    if state.image:
        digest = f" ({state.image_digest})" if state.image_digest and state.image_digest not in state.image else ""
        rows.append(("image", one_line(state.image + digest)))
    if state.phase and not state.has_ended:
        rows.append(("phase", f"{state.phase} for {format_duration(max(0.0, time.time() - state.phase_since))}"))
    why = explain(state)
    if why:
        rows.append(("because", why))
    if state.log_unread:
        rows.append(("log", f"cannot be read: {state.log_unread.reason}"))
    if state.kept_until > time.time():
        rows.append(("kept", _kept(run.id, state.kept_until - time.time())))
    if state.error and state.error.file:
        rows.append(("at", one_line(source_line(state.error))))
    rows += [("warning", warning) for warning in state.warnings]
    if run.damaged_lines:
        rows.append(("damaged", f"{count(run.damaged_lines, 'line')} of its events cannot be read"))
    if state.progress and not state.has_ended:
        rows.append(("step", f"{state.progress.step}/{'?' if state.progress.steps is None else state.progress.steps}"))
    if state.metrics:
        latest = "  ".join(f"{name} {number(value)}" for name, value in state.metrics.items())
        rows.append(("metrics", one_line(latest)))
    rows += [("", line) for line in learning_curves({name: curve.values for name, curve in state.curves.items()})]
    if state.restarts:
        rows.append(("restarts", str(state.restarts)))
    if state.checkpoint:
        rows.append(("checkpoint", f"step {state.checkpoint.step}"))
    if money(state):
        rows.append(("cost", money(state)))
    rows += [(name, shown(place)) for name, place in run.places().items()]
    if state.ref and state.ref.get("url"):
        rows.append(("console", state.ref["url"]))
    rows.append(("logs", command("logs", run.id)))
    if state.state in ("failed", "stopped"):
        rows.append(("next", command("rerun", run.id)))
    return rows


@click.command("logs", epilog="Example:\n\n  cloudtrain logs last -f --rank 0 --grep loss")
@run_argument
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until the run has ended.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only this node.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines (before following).")
@click.option(
    "--since",
    metavar="T",
    help="Only lines younger than a duration (10 min) or after a time (2026-11-21T10:00).",
)
@click.option("--grep", metavar="RE", help="Only lines that this regular expression matches.")
@json_option
@data_dir
def logs_command(
    folder: str | None, /, run: str, following: bool, since: str | None, as_json: bool, **options: Any
) -> None:
    """Print the log lines of RUN: all nodes and ranks together, or some of them apart."""
    found = find_run(run, data_dir=folder)
    moment = None if since is None else _moment(since)
    line = None
    try:
        for line in found.logs(follow=following, since=moment, **options):
            if as_json:
                item = {
                    "time": line.time,
                    "node": line.node,
                    "rank": line.rank,
                    "source": line.source,
                    "text": line.text,
                }
                write_json(item, indent=None)
            else:
                mark = "" if options["rank"] is not None else f"[{line.source or f'node {line.node}'}] "
                write_log(mark, line.text)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    if line is None:
        chosen = any(value is not None for value in (since, *options.values()))
        say(f"no such lines; {command('logs', found.id)} shows all of them" if chosen else _no_lines(found.recorded()))


def _no_lines(state: RunState) -> str:
    if not state.has_ended:
        return "no lines yet"
    if state.ref is None:
        return f"{state.run_id} was never started: {state.reason}"
    return f"{state.run_id} {state.state} without a line"


def _moment(text: str) -> float:
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        hint = "a duration such as 10 min, or a time such as 2026-11-21T10:00"
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint=hint) from None


@click.command("wait", epilog="Example:\n\n  cloudtrain wait last && cloudtrain fetch last")
@run_argument
@click.option("--timeout", metavar="T", help="Give up waiting after this long, e.g. 10 min; the run goes on.")
@json_option
@data_dir
def wait_command(folder: str | None, /, run: str, timeout: str | None, as_json: bool) -> None:
    """Wait until RUN has ended; the exit code is that of the run."""
    found = find_run(run, data_dir=folder)
    try:
        seconds = None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    try:
        state = found.wait(seconds)
    except TimeoutError as error:
        say(str(error))
        if as_json:
            print_json(found.status().to_json())
        raise click.exceptions.Exit(5) from None
    except KeyboardInterrupt:
        say(f"\n{found.id} goes on")
        raise click.exceptions.Exit(130) from None
    conclude(found, state, as_json)


@click.command("stop", epilog="Example:\n\n  cloudtrain stop last --release")
@run_argument
@click.option("--release", is_flag=True, help="Also give back machines that are kept after it (aws.keep_alive).")
@json_option
@data_dir
def stop_command(folder: str | None, /, run: str, as_json: bool, release: bool) -> None:
    """Stop RUN: SIGTERM to every rank, then the grace period. What was saved, `rerun` goes on from.

    The shared trainer stops all ranks at the same step and saves; a program of your own decides for itself.
    """
    found = find_run(run, data_dir=folder)
    state = found.last_known()
    whose = f", which {state.owner} has started" if state.owner else ""
    if state.has_ended:
        say(f"{found.id} had ended already")
    else:
        say(f"stopping {found.id}{whose} …")
    try:
        state = found.stop()
    except KeyboardInterrupt:
        if found.recorded().stop_requested and not found.recorded().has_ended:
            say(f"{found.id} was told to stop: it saves, and ends by itself; nobody waits for it any more")
            say(f"cloudtrain stop {found.id} waits again, and sees to it that it ends; cloudtrain status {found.id}")
        raise
    if release:
        found.release()
        say(f"{found.id}: its machines are given back")
    conclude(found, state, as_json)


@click.command("fetch", epilog="Example:\n\n  cloudtrain fetch last ./result --checkpoints")
@run_argument
@click.argument("target", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--checkpoints", is_flag=True, help="Checkpoints too, not only model and output.")
@json_option
@data_dir
def fetch_command(folder: str | None, /, run: str, target: Path | None, checkpoints: bool, as_json: bool) -> None:
    """Copy model and output of RUN into DIR (default: a folder named like the run)."""
    found = find_run(run, data_dir=folder)
    notes: list[str] = []
    bar = progress_bar("fetching", bytes_=True)
    path = found.fetch(target, checkpoints=checkpoints, progress=bar, note=notes.append)
    for note in notes[:MAX_NAMED]:
        say(f"note: {note}")
    if len(notes) > MAX_NAMED:
        say(f"note: and {len(notes) - MAX_NAMED} more were left out; --json names them all")
    if not found.recorded().has_ended:
        say(f"run {found.id} goes on: these are its files as they are now, perhaps not all of them finished")
    copied = sorted(str(file) for file in path.rglob("*") if file.is_file())
    if as_json:
        print_json({"run": found.id, "folder": str(path), "files": copied, "left_out": notes})
    else:
        tell("\n".join(map(one_line, copied)))


@click.command("rerun", epilog="Example:\n\n  cloudtrain rerun last --set limits.max_runtime='2 h'")
@run_argument
@set_option
@provider_option
@click.option("--fresh", is_flag=True, help="From the beginning, even when there is a checkpoint.")
@click.option("--detach", "-d", is_flag=True, help="Start and return at once.")
@json_option
@data_dir
def rerun_command(folder: str | None, /, run: str, as_json: bool, detach: bool, **options: Any) -> None:
    """Run the same source and spec again, under a new id. What did not succeed goes on from its last checkpoint."""
    from cloudtrain.cli.start import start
    from cloudtrain.submission.preflight import preflight, refuse_errors
    from cloudtrain.submission.submit import archive_of

    old = find_run(run, data_dir=folder)
    plan = old.plan_again(options["overrides"], fresh=options["fresh"], provider=options["provider"])
    issues = preflight(plan)
    refuse_errors(issues)
    say(
        f"again after {old.id}"
        + (f", from its checkpoints in {plan.context.resume_from}" * bool(plan.context.resume_from))
    )
    start(plan, issues, archive=archive_of(plan), detach=detach, as_json=as_json, after=old.id)
