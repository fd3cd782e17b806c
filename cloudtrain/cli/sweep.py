"""The command `sweep`: plan a search over a job's settings, start it, and follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.api.preflight import preflight, raise_errors
from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.follow_sweep import follow_and_exit
from cloudtrain.cli.job_of_command import JobCommand, job_options, load_job
from cloudtrain.cli.options import data_dir, detach_option, dry_run_option, json_option, yes_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.start import confirm_cost, confirm_folder, confirm_uploads
from cloudtrain.cli.sweep_export import export_command
from cloudtrain.cli.terminal import indented, progress_bar
from cloudtrain.errors import UsageError
from cloudtrain.providers import get_provider
from cloudtrain.spec.load import override
from cloudtrain.spec.sources import FlagText, read_source
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.planning import (
    plan_sweep,
    read_objective,
    split_overrides,
    start_sweep,
    sweep_values,
)
from cloudtrain.sweeps.rules import as_checked_here, sweep_issues
from cloudtrain.sweeps.sweep import find_sweep
from cloudtrain.units import parse_duration, parse_money

if TYPE_CHECKING:
    from cloudtrain.api.jobs import Job
    from cloudtrain.sweeps.planning import SweepPlan
    from cloudtrain.sweeps.sweep import Sweep

START = "start"


class SweepGroup(click.Group):
    """A group whose default command is `start`: `sweep JOB` is `sweep start JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with `start` in front of an unknown word."""
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            if args and ctx.parent and not Path(args[0]).exists():
                _refuse_unknown_command(args, ctx.parent)
            args = [START, *args]

        return super().parse_args(ctx, args)


def _refuse_unknown_command(args: list[str], program: click.Context) -> None:
    """Raise UsageError for `sweep stop`, as commands of runs take sweeps, and for `sweep plot X`."""
    assert isinstance(program.command, click.Group)  # noqa: S101
    if args[0] in program.command.list_commands(program):
        raise UsageError(f"there is no command 'sweep {args[0]}'", hint=command(*args))
    if args[1:] and not any(word.startswith("-") for word in args[:2]):
        hint = f"{command('sweep', '--help')}; {command('report', args[1])} draws charts"
        raise UsageError(f"there is no command 'sweep {args[0]}'", hint=hint)


@click.group(
    "sweep",
    cls=SweepGroup,
    epilog="""\b
Examples:
  cloudtrain sweep                                     the section sweep of job.yaml
  cloudtrain sweep --set args.lr=1e-4,1e-3,1e-2        a grid, without a section
  cloudtrain sweep train.py --set 'args.lr=loguniform(1e-4, 1e-1)' --objective val_loss:minimize --trials 20
  cloudtrain sweep more digits-k2x9 20                 twenty more trials of the same search
  cloudtrain report digits-k2x9                        its charts, as one page of HTML""",
)
def sweep_command() -> None:
    """Search over settings: each trial is a run of the job with other values.

    `cloudtrain sweep JOB` is short for `cloudtrain sweep start JOB`. `list`, `status`, `attach`,
    `stop` and `logs` take a sweep like a run.
    """


sweep_command.add_command(export_command)


@sweep_command.command(
    START,
    cls=JobCommand,
    short_help="Start a sweep and follow it.",
    epilog="Example:\n\n  cloudtrain sweep start --provider aws --trials 20 --parallel 4",
)
@job_options
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help=(
        "Override a field, or vary it: several values (args.lr=1e-4,1e-3) or a range. Repeatable."
    ),
)
@click.option(
    "--objective", metavar="METRIC:GOAL", help="Metric and goal, such as val_loss:minimize."
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Number of trials.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Number of trials at once.")
@yes_option
@click.option(
    "--sweep-id",
    metavar="ID",
    help="Set the sweep id; a second start with the same id starts nothing.",
)
@detach_option
@dry_run_option
@json_option
@data_dir
def start_command(
    folder: str | None,
    /,
    job: Path,
    as_json: bool,
    detach: bool,
    dry_run: bool,
    yes: bool,
    sweep_id: str | None,
    **options: Any,
) -> None:
    """Start the sweep of JOB and follow it: its section `sweep`, or the values of --set.

    The plan is shown first, with the most that it may cost. Ctrl-C stops following, not the sweep.
    """
    from cloudtrain.cli.sweep_view import overview

    loaded = _load(job, options)
    provider = options["provider"]
    as_ = options["as_"]
    bar = progress_bar("reading source")
    plan = plan_sweep(
        loaded,
        provider,
        as_=as_,
        sweep_id=sweep_id,
        data_dir=folder,
        progress=bar,
        preview=dry_run and not as_json,  # placeholders are for people only
    )
    issues = preflight(as_checked_here(plan.job), starting=not dry_run)
    issues += sweep_issues(plan.job)
    raise_errors(issues)
    print_message(overview(plan))

    for issue in issues:
        print_message(f"  note: {indented(issue.render(), 8)}")

    if dry_run:
        if as_json:
            print_json(_as_json(plan), exact=True)

        return

    folder_of_job = Path(plan.job.context.folder)
    if not plan.job.is_rehearsal:
        confirm_folder(folder_of_job, plan.job, yes=yes)
        confirm_uploads(folder_of_job, plan.job, yes=yes)
    if plan.is_billed and not yes:
        confirm_cost(folder_of_job, plan.worst_usd)

    sweep = start_sweep(
        plan, progress=progress_bar("packing source"), pushing=progress_bar("pushing image")
    )

    _follow(sweep, detach=detach, as_json=as_json)


@sweep_command.command(
    "more", epilog="Example:\n\n  cloudtrain sweep more digits-k2x9 20 --max-cost '80 USD'"
)
@click.argument("sweep", metavar="[SWEEP]", required=False)
@click.argument("trials", metavar="[N]", type=click.IntRange(0), default=0)
@click.option(
    "--parallel",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Number of trials at once from now on.",
)
@click.option("--max-cost", metavar="USD", help="Raise the budget of all trials, such as '80 USD'.")
@click.option("--max-time", metavar="TIME", help="Raise the time of all trials, such as 12h.")
@yes_option
@detach_option
@json_option
@data_dir
def more_command(
    folder: str | None,
    /,
    sweep: str | None,
    trials: int,
    parallel: int | None,
    max_cost: str | None,
    max_time: str | None,
    yes: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Run N more trials of SWEEP (default: the last of this folder), based on all results.

    Interrupted trials continue from their checkpoints, beside the new ones. The most that it may
    cost is shown first; the budget stays the same unless you raise it. Without N, a sweep that was
    interrupted as a whole, as by a restart of this machine, continues.
    """
    from cloudtrain.cli.sweep_view import extension_lines

    if sweep is not None and sweep.isdecimal() and len(sweep) < 10 and not trials:
        trials = int(sweep)  # `sweep more 20`
        sweep = None

    if sweep:
        resumed = find_sweep(sweep, data_dir=folder)
    else:
        resumed = _last_sweep(folder, trials)

    budget = Caps(usd=_amount("--max-cost", max_cost), seconds=_amount("--max-time", max_time))
    if not trials and parallel is None and budget == Caps() and resumed.is_interrupted:
        print_message(f"{resumed.id} continues")
        resumed.start_driver()
        _follow(resumed, detach=detach, as_json=as_json)
        return

    extension = resumed.plan_extension(trials, parallel=parallel, budget=budget)
    print_message("\n".join(extension_lines(resumed, extension)))

    if extension.worst_usd is not None and not yes:
        confirm_cost(Path.cwd(), extension.worst_usd)

    resumed.extend(extension)
    _follow(resumed, detach=detach, as_json=as_json)


def _last_sweep(data_dir: str | None, trials: int) -> Sweep:
    """Return the newest submission of this folder. Raise UsageError if it is a run."""
    newest = chosen(None, data_dir)
    if isinstance(newest, Run):
        raise UsageError(
            f"{newest.id} is a run, not a sweep",
            hint=command("sweep", "more", "SWEEP", str(trials)),
        )

    return newest


def _amount(flag: str, text: str | None) -> float | None:
    """Return US dollars or seconds; None for a flag that is not given."""
    if text is None:
        return None
    try:
        if flag == "--max-cost":
            return parse_money(text)

        return float(parse_duration(text))
    except ValueError as error:
        raise UsageError(f"{flag} {text}: {error}") from None


def _follow(sweep: Sweep, *, detach: bool, as_json: bool) -> None:
    if not detach:
        follow_and_exit(sweep, as_json)

    if as_json:
        print_json({"sweep": sweep.id, "folder": str(sweep.folder.path)})
        return

    from cloudtrain.cli.sweep_view import next_commands

    print_output(sweep.id)
    print_message(next_commands(sweep))


def _load(job: Path, options: dict[str, Any]) -> Job:
    """Load the job; the search of the command line overrides its section."""
    space, overrides = split_overrides(options["overrides"])
    document = override(read_source(job), ())
    has_section = "sweep" in document.values
    flags: list[str] = []

    is_varied = has_section or space or any(text.startswith("sweep.") for text in overrides)
    if not is_varied:  # refused as such, whatever the other flags are
        return load_job(job, {**options, "overrides": overrides})

    if space and not has_section:
        values = sweep_values(space, trials=options["trials"], objective=options["objective"] or "")
        flags.append(FlagText(f"sweep={json.dumps(values)}", "--set"))
    else:
        if space:
            flags.append(FlagText(f"sweep.space={json.dumps(space)}", "--set"))

        if options["objective"]:
            objective = json.dumps(read_objective(options["objective"]))
            flags.append(
                FlagText(f"sweep.objective={objective}", f"--objective {options['objective']}")
            )

    for name in ("trials", "parallel"):
        if options[name]:
            flags.append(FlagText(f"sweep.{name}={options[name]}", f"--{name} {options[name]}"))

    flags += overrides
    return load_job(job, {**options, "overrides": flags})


def _as_json(plan: SweepPlan) -> dict[str, Any]:
    """Return the definition of a sweep and, for a cloud's own service, the request."""
    document = {**plan.definition.to_json(), "worst_usd": plan.worst_usd}
    if plan.definition.engine != "native":
        return document

    request = get_provider(plan.job.target.provider).native_sweeps().render(plan.job)
    return {**document, "request": dict(request.document)}
