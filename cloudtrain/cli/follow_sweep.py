"""Following a sweep until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from cloudtrain.cli.output import print_json
from cloudtrain.cli.run_end import EXIT_CODES

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


def follow_and_exit(sweep: Sweep, as_json: bool) -> NoReturn:
    """Show a sweep until it has ended, and exit: 0 succeeded, 1 failed, 5 stopped."""
    from cloudtrain.cli.sweep_view import follow, report, sweep_as_json

    state = follow(sweep)
    if as_json:
        print_json(sweep_as_json(state))

    report(sweep, state)
    raise click.exceptions.Exit(EXIT_CODES[state.state])
