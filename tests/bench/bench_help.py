"""`cloudtrain --help` against a click program that prints its help: `python
tests/bench/bench_help.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloudtrain.cli import COMMANDS, cli
from tests.bench.measure import (
    BIN,
    Comparison,
    Counted,
    compare,
    cost,
    count,
    options,
    report,
    workplace,
)

HELP_BAR = 1.6
HELP_LIMIT = 1.1
"""Of instructions."""

PROGRAM = '''"""A click program with as many commands as ours and the same words, all in one file."""

import click


@click.group(epilog={epilog!r})
@click.option("--data-dir", metavar="DIR", help="Where runs are kept.")
@click.version_option("1.0", prog_name="program")
def main(data_dir):
    """Train one job spec on SageMaker, Azure ML, Slurm or your machine."""
'''
COMMAND = '''

@main.command({name!r})
def {name}_command():
    """{summary}"""
'''
SCRIPT = """import re
import sys
from program import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
"""Exact text that an installer writes for a console script."""


def main() -> None:
    """Print the row."""
    parsed = options(rounds=40)
    with workplace() as (place, env):
        text = PROGRAM.format(epilog=cli.epilog)
        text += "".join(COMMAND.format(name=name, summary=line) for name, line in COMMANDS.items())
        (place / "program.py").write_text(text)
        (place / "program").write_text(SCRIPT)
        if parsed.count:
            ours = (BIN / "cloudtrain", "--help")
            theirs = (place / "program", "--help")
            row = Counted("`cloudtrain --help`", ours, theirs, HELP_LIMIT, HELP_BAR)
            sys.exit(count([row], env, place))

        comparison = compare(
            Comparison(
                "`cloudtrain --help`", "a click program's help", {"wall": HELP_BAR, "cpu": HELP_BAR}
            ),
            lambda: cost([sys.executable, BIN / "cloudtrain", "--help"], env, place),
            lambda: cost([sys.executable, place / "program", "--help"], env, place),
            parsed.rounds,
        )
    report([comparison], parsed.json)


if __name__ == "__main__":
    main()
