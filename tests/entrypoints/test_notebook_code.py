"""A notebook runs as a job with the lines that IPython alone understands left out, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher.notebook_code import INSTALLS, plain_code
from cloudtrain_launcher.worker import run_notebook


@pytest.mark.parametrize(
    "line",
    [
        "%matplotlib inline",
        "!nvidia-smi",
        "!echo it's",
        "%pip install einops",
        "pip install einops",
        "    pip install -q 'einops>=0.8'",
        "uv add einops",
        "?print",
        "model.fit??",
    ],
)
def test_a_line_for_ipython_is_left_out(line: str) -> None:
    indent = line[: len(line) - len(line.lstrip())]
    before = "if True:" if indent else "x = 1"
    code, left_out = plain_code(f"{before}\n{line}\n{indent}y = 2")
    assert code == f"{before}\n{indent}pass\n{indent}y = 2\n"
    assert left_out == [line.strip()]


@pytest.mark.parametrize(
    "source",
    [
        'usage = """\npip install einops\n%time x\nreally?\n"""\n',
        "rest = (17\n% 5)\n",
        "x = 'a?'\n",
        "broken = (\n",
    ],
)
def test_python_stays_as_it_is(source: str) -> None:
    assert plain_code(source) == (source, [])


def test_text_stays_beside_a_line_that_is_left_out() -> None:
    source = '!echo it\'s\nusage = """\npip install einops\n"""\n'
    assert plain_code(source) == (source.replace("!echo it's", "pass"), ["!echo it's"])


def test_what_is_only_timed_or_captured_is_executed() -> None:
    assert plain_code("if x:\n    %time y = f(x)") == ("if x:\n    y = f(x)\n", [])
    assert plain_code("%%time\nx = 1") == ("pass\nx = 1\n", [])
    assert plain_code("\n%%capture out\nx = 1") == ("\npass\nx = 1\n", [])


def test_a_cell_of_another_language_is_left_out_whole() -> None:
    assert plain_code("\n%%bash\npip install einops\n") == ("\n\n\n", ["%%bash"])
    assert plain_code("") == ("\n", [])


@pytest.mark.parametrize(
    "line", ["pip install x", "!pip3 install x", "%conda install x", "!python -m pip install x"]
)
def test_lines_that_install_are_known(line: str) -> None:
    assert INSTALLS.match(line)
    assert not INSTALLS.match(line.replace("install", "list"))


def test_a_notebook_displays_and_installs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["pip install einops\nx = 1", "x?\ndisplay([x], 'text')\nx += 1"]
    notebook = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(notebook))
    namespace: dict[str, Any] = {}
    run_notebook(path, namespace)
    output = capsys.readouterr()
    assert namespace["x"] == 2
    assert output.out == "[1]\ntext\n"
    assert "[cell 1]: left out 'pip install einops': " in output.err
    assert "name packages in requirements.txt" in output.err
    assert "[cell 2]: left out 'x?': a notebook's magic" in output.err
