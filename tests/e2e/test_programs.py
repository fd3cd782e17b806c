"""The kinds of program that run unchanged: scripts, modules, notebooks, and the starter that `init`
writes.
"""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.torchrun


def test_a_module_of_the_source_runs_as_python_dash_m_would(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: mod\nentrypoint: -m pkg.train\nargs: {lr: 1.10, verbose: true, quiet: false}\n"
        ),
        pkg____init___py="",
        pkg__train_py=(
            "import sys\nfrom pkg import other\nprint(__name__, __spec__.name, sys.argv[1:],"
            " other.X)\n"
        ),
        pkg__other_py="X = 'sibling'\n",
    )
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert "__main__ pkg.train ['--lr', '1.10', '--verbose'] sibling" in cli.run("logs", "last").out


def test_an_installed_third_party_module_runs(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: timeit\nentrypoint: -m timeit\nargs: ['-n', 1, '-r', 1, 'import"
            " this_is_not_there']\n"
        )
    )
    result = cli.run("submit")
    assert result.code == 1
    assert "ModuleNotFoundError" in cli.run("logs", "last").out


def test_a_notebook_runs_as_a_script_and_names_the_failing_cell(cli: CommandLine) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import sys\n", "x = 41"]},
        {
            "cell_type": "code",
            "source": "!pip install nothing\nprint('answer', x + 1, sys.argv[1:])",
        },
        {
            "cell_type": "code",
            "source": ["if '--fail' in sys.argv:\n", "    raise KeyError('in a cell')"],
        },
    ]
    cli.write(
        job_yaml="name: note\nentrypoint: my notebook.ipynb\nargs: [a b]\n",
        **{"my notebook_ipynb": json.dumps({"cells": cells, "nbformat": 4, "metadata": {}})},
    )
    good = cli.run("submit")
    assert good.code == 0, good.err
    log = cli.run("logs", "last").out
    assert "answer 42 ['a b']" in log
    assert "left out '%matplotlib inline'" in log
    bad = cli.run("submit", "--set", "args=[--fail]")
    assert bad.code == 1
    assert "raised KeyError: 'in a cell'" in bad.err
    assert "[cell 3]:2  raise KeyError('in a cell')" in bad.err


def test_workers_that_data_loaders_spawn_find_the_program_again(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: spawn\nentrypoint: train.py\n",
        train_py=(
            "import multiprocessing as mp\n\ndef double(x):\n    return 2 * x\n\n"
            "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
            "        print('doubled', pool.map(double, [21]))\n"
        ),
    )
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert "doubled [42]" in cli.run("logs", "last").out


def test_the_starter_trains_at_once(cli: CommandLine) -> None:
    cli.write()
    (cli.folder / "job").mkdir(exist_ok=True)
    written = cli.run("init")
    assert written.code == 0, written.err
    assert cli.run("check").code == 0
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert list((cli.run_folder(cli.json("list")[0]["run"]) / "model").glob("model.*"))
    assert cli.run("init").code == 2
