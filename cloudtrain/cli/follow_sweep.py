"""Following a sweep until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from cloudtrain.cli.output import print_json, print_message
from cloudtrain.cli.run_end import EXIT_CODES

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


def follow_and_exit(sweep: Sweep, as_json: bool, *, timeout: float | None = None) -> NoReturn:
    """Show a sweep until it has ended, and exit: 0 succeeded, 1 failed, 5 stopped.

    Also exit with 5 after `timeout` seconds.
    """
    from cloudtrain.cli.sweep_view import follow, report, sweep_as_json

    try:
        state = follow(sweep, timeout)
    except TimeoutError as error:
        print_message(str(error))
        if as_json:
            print_json(sweep_as_json(sweep.status()))
        raise click.exceptions.Exit(5) from None

    if as_json:
        print_json(sweep_as_json(state))

    report(sweep, state)
    raise click.exceptions.Exit(EXIT_CODES[state.state])
