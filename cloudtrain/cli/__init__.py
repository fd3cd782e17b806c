"""The command line: a thin shell over the API that imports a command when it is called."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from cloudtrain.errors import CloudtrainError, Issue, SpecError, StorageError, UsageError
from cloudtrain.version import __version__
from cloudtrain_wire.secret_values import masker, secrets_in

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "Write a job.yaml: a commented starter, or one for a script.",
        "check": "Report every mistake in a spec, each at its line.",
        "plan": "Show the exact request of a job, without starting it.",
        "submit": "Start a job, or a script without one, and follow it.",
        "sweep": "Search over settings: run trials of a job, and find the best.",
        "rerun": "Run again; a failed or stopped run continues from its checkpoint.",
    },
    "Watch": {
        "status": "Show the state of a run, or all running ones.",
        "attach": "Follow a run that was started before.",
        "top": "Watch a run on one screen: curves, GPUs, ranks, cost.",
        "logs": "Print a run's log lines.",
        "metrics": "Show a run's metrics, or write them as CSV.",
        "compare": "Show runs side by side: settings, metrics, time, cost.",
        "report": "Write a run or a sweep as one page of HTML.",
        "diagnose": "Explain why a run (or a log file) failed or is slow.",
        "wait": "Wait until a run has ended.",
    },
    "Manage": {
        "list": "List all runs.",
        "stop": "Stop a run; what it saved is kept.",
        "fetch": "Copy what a run left: model and output.",
        "cost": "Show what runs in clouds have cost.",
        "rm": "Remove runs from this machine.",
        "prune": "Remove old runs, and unused sources and environments.",
    },
    "Tools": {
        "gpus": "Show machines with GPUs of both clouds, and their prices.",
        "doctor": "Check each thing that a job needs of a machine or an account.",
        "image": "Build the image that jobs run in, and push it.",
        "infra": "Print the template of an account; write its settings.",
        "schema": "Print the JSON Schema of job.yaml.",
        "skill": "Print one page for a coding agent.",
        "completion": "Print the completion script of a shell.",
    },
}
"""Every command by purpose, and its line in --help. A command is in the module of its name."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
ALIASES = {
    "run": "submit",
    "resume": "rerun",
    "ls": "list",
    "ps": "list",
    "cancel": "stop",
    "kill": "stop",
}
"""Command names of other tools, and our command for each."""

VARIABLES = {
    "CLOUDTRAIN_PROVIDER": "default of --provider",
    "CLOUDTRAIN_DATA_DIR": "default of --data-dir",
    "CLOUDTRAIN_…": (
        "any other setting: [aws] region is CLOUDTRAIN_AWS_REGION (docs/reference/settings.md)"
    ),
    "AWS_PROFILE, AZURE_…": ("variables and logins of the clouds' own tools work as they do there"),
    "NO_COLOR": "no colours",
}
"""Environment variables that --help names."""

SIMILAR_COMMAND = 0.75
"""Least similarity of a suggested command: `prune` must not lead to `rerun`, which starts a job."""

BUG = "This is a bug in cloudtrain, not a mistake of yours. Please report it with the lines above."


DISK_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ENAMETOOLONG,
)
"""Errors of the disk, which are no bugs: full, read-only, without permission, broken."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of --help."""
        return [*COMMANDS]  # the module `list` of this package hides the built-in

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command of that name."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None

        command: click.Command = getattr(import_module(f"cloudtrain.cli.{name}"), f"{name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of --help without importing any command."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{width}}", summary) for name, summary in commands.items()]
                )

        with formatter.section("Variables"):
            formatter.write_dl(list(VARIABLES.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and suggest a similar name."""
        if args and args[0] not in COMMANDS and args[0] not in ALIASES:
            from cloudtrain.errors import did_you_mean

            meant = did_you_mean(args[0], COMMANDS, SIMILAR_COMMAND)
            ctx.fail(f"there is no command {args[0]!r}{meant}")

        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit as SIGPIPE does if the reader of its output is gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1, as for a failed job
            ctx.exit(141)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  cloudtrain submit train.py -- --epochs 3   train a script on this machine, and follow
  cloudtrain init                            write a starter job.yaml here
  cloudtrain check                           find every mistake in it
  cloudtrain logs --rank 1                   what rank 1 of the last run printed

Exit codes: 0 succeeded, 1 the job failed, 2 bad usage or bad spec, 3 refused by a check,
4 cloud, network or disk trouble, 5 stopped or timed out, 130 interrupted.""",
)
@click.option(
    "--data-dir", metavar="DIR", help="Folder of runs (default: ~/.local/share/cloudtrain)."
)
@click.option("--verbose", "-v", is_flag=True, help="Show log messages of the clouds' SDKs.")
@click.version_option(__version__, prog_name="cloudtrain", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, data_dir: str | None, verbose: bool) -> None:
    """Train one job spec on SageMaker, Azure ML, Slurm or your machine."""
    ctx.obj = data_dir
    if verbose:
        import logging

        from cloudtrain.cli.terminal import printable

        class Printable(logging.Formatter):
            """Log records of SDKs, with control characters escaped."""

            def format(self, record: logging.LogRecord) -> str:
                return printable(super().format(record))

        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Printable(logging.BASIC_FORMAT))
        logging.basicConfig(level=logging.INFO, handlers=[handler])


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit with the codes that --help lists."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if sys.platform == "win32":  # what reads a pipe there expects UTF-8, too
                stream.reconfigure(encoding="utf-8")

            # Output of a job and names of files may not be valid text.
            stream.reconfigure(errors="backslashreplace")

    if argv is None:
        words = sys.argv[1:]
    else:
        words = argv

    masker.clear()
    masker.add(secrets_in([words, dict(os.environ)]))

    try:
        code = cli.main(args=words, prog_name="cloudtrain", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        code = _refuse(error, words)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has closed the pipe
        code = 141
    except Exception as error:  # noqa: BLE001  (the one place where all errors end)
        code = 130
        if not isinstance(error.__cause__, KeyboardInterrupt):  # as in Python 3.11's __set_name__
            code = _fail(_output_error(error) or _disk_error(error) or error, words)

    sys.exit(code if isinstance(code, int) else 0)


def _output_error(error: Exception) -> StorageError | None:
    """Return an error that stdout cannot be written; None for any other error."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next

    if (
        not isinstance(error, OSError)
        or at is None
        or at.tb_frame.f_globals.get("__name__") != "click.utils"
    ):
        return None

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drop buffered output
    hint = "make room there, or send it elsewhere"
    return StorageError(f"stdout cannot be written: {error.strerror}", hint=hint)


def _disk_error(error: Exception) -> StorageError | None:
    """Return an error for a file or a disk that refuses a call; None for any other error."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return StorageError("the current folder was removed", hint="cd to another folder")
    if error.errno not in DISK_ERRORS:
        return None

    if error.filename is None:
        problem = str(error.strerror)
    else:
        problem = f"{error.filename}: {error.strerror}"

    hint = "look at the disk and the permissions there, or use another file or folder"
    return StorageError(problem, hint=hint)


def entry() -> NoReturn:
    """Run `main`, and exit at once: to tear down the interpreter takes as long as a plan."""
    gc.set_threshold(100_000)  # most commands end before a collection pays
    _open_standard_files()
    code: Any = 1

    try:
        main()
    except SystemExit as end:
        code = end.code

    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or 141

    sys.stderr.flush()
    os._exit(code)


def _open_standard_files() -> None:
    """Open /dev/null for stdin, stdout and stderr if they are closed.

    Otherwise a file that is opened later would get their numbers, and their output.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w+", encoding="utf-8"))  # noqa: SIM115


def _refuse(error: click.ClickException, argv: list[str]) -> int:
    """Show an error of the command line like any other; for a group without a command, its help."""
    no_args_error = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2
    if isinstance(error, no_args_error):
        from cloudtrain.cli.terminal import write

        write(error.format_message(), err=True)
        return UsageError.exit_code

    if isinstance(error, click.BadParameter) and error.param:
        sentence = _number_in_words(error.message, error.param.type)
        error = click.BadParameter(sentence, error.ctx, error.param, error.param_hint)

    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = None
    if context:
        hint = f"{context.command_path} --help"

    return _fail(UsageError(message[:1].lower() + message[1:], hint=hint), argv)


def _number_in_words(message: str, kind: object) -> str:
    """Return what is wrong with a whole number; the message of any other kind as it is.

    click says that 'two' is not a valid integer range.
    """
    if not isinstance(kind, click.IntRange):
        return message

    expected = "a whole number"
    if kind.max is not None:
        expected += f" from {kind.min} to {kind.max}"
    elif kind.min:
        expected += f", {kind.min} or more"

    value = message.partition(" is not ")[0]
    return f"expected {expected}, got {value}"


def _write_error(error: CloudtrainError, notes: Sequence[str] = ()) -> None:
    """Print an error and notes on stderr.

    A terminal shows the wrong line of the file; elsewhere each error is a line for tools.
    """
    from cloudtrain.cli.terminal import indented, write

    if sys.stderr.isatty():
        import shutil

        from cloudtrain.cli.output import error_lines, note_lines

        width = shutil.get_terminal_size().columns
        lines = error_lines(error, width)
        for note in notes:
            lines += note_lines(note, width)

        for line in lines:
            write(line, err=True)

        return

    prefix = "" if isinstance(error, SpecError) else "error: "
    write(f"{prefix}{error.render()}", err=True)

    for note in notes:
        write(f"note: {indented(note, 6)}", err=True)


def _fail(error: Exception, argv: list[str]) -> int:
    from cloudtrain.cli.terminal import print_json, write

    if not isinstance(error, CloudtrainError):
        import traceback

        write(f"{traceback.format_exc()}{BUG}", err=True)
        return 1

    notes: list[str] = getattr(error, "__notes__", [])
    _write_error(error, notes)

    if "--" in argv:
        own_words = argv[: argv.index("--")]
    else:
        own_words = argv

    if "--json" in own_words:
        detail: dict[str, Any] = {
            "message": error.message,
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
        if isinstance(error, SpecError):
            detail["mistakes"] = [_mistake(issue) for issue in error.issues]

        document: dict[str, Any] = {"error": detail}
        if notes:
            document["warnings"] = notes

        print_json(document)

    return error.exit_code


def _mistake(issue: Issue) -> dict[str, Any]:
    return {
        "where": issue.origin,
        "path": issue.field,
        "message": issue.message,
        "hint": issue.hint,
    }
