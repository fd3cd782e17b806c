"""A rank reports the original exception, with its file and line, whatever its class.

A notebook runs without the lines that IPython alone understands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher import error_details
from cloudtrain_launcher.worker import run_notebook
from cloudtrain_wire.notebook_code import INSTALLS, plain_code
from tests.entrypoints.launchers import run_rank

LOADER = """import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

def fail(index):
    raise ValueError("the dog ate sample %d" % index)

if sys.argv[1] == "loader":
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            fail(index)
    next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=2)))
else:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(fail, 0).result()
"""
WORKERS = {
    "loader": "in DataLoader worker process 0",
    "executor": "in a worker process",
}


@pytest.mark.parametrize("case", WORKERS)
def test_an_exception_in_a_worker_process_is_reported_as_the_ranks_own(
    tmp_path: Path, case: str
) -> None:
    error = run_rank(tmp_path, LOADER, case).error
    assert (error["exception"], error["message"]) == (
        "ValueError",
        f"the dog ate sample 0 ({WORKERS[case]})",
    )
    assert (error["file"], error["line"], error["code"][:17]) == (
        "train.py",
        5,
        "raise ValueError(",
    )
    assert "ValueError: the dog ate sample 0" in error["traceback"]
    assert not error["consequence"]


class Odd(Exception):
    """An exception that cannot be created from a message alone: torch raises RuntimeError in its
    place.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


def missing() -> None:
    {}["missing"]  # type: ignore[index]


def odd() -> None:
    raise Odd("sample", 0)


def refused() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("fail", "exception", "message"),
    [
        (missing, "KeyError", "'missing'"),
        (odd, "Odd", "sample 0"),
        (refused, "ConnectionRefusedError", "[Errno 111] Connection refused"),
    ],
)
def test_the_original_exception_is_reported_whatever_class_torch_raises_instead(
    fail: Callable[[], None], exception: str, message: str
) -> None:
    wrapper = pytest.importorskip("torch._utils").ExceptionWrapper
    try:
        fail()
    except Exception:  # noqa: BLE001  (as torch's own workers do)
        passed_on = wrapper(where="in pin memory thread for device 0")

    with pytest.raises(Exception) as raised:
        passed_on.reraise()

    reported = error_details.describe(
        raised.value, raised.tb, Path(__file__).parent, Path("/payload")
    )
    assert (reported.exception, reported.message) == (
        exception,
        f"{message} (in pin memory thread for device 0)",
    )
    assert reported.file == Path(__file__).name
    assert not reported.consequence


def test_tracebacks_of_torchs_spawn_and_of_threads_are_parsed_too() -> None:
    block = (
        'Traceback (most recent call last):\n  File "/job/a.py", line 7, in f\n   '
        " g()\npkg.errors.Own: not so\n"
    )
    for text, where in (
        ("\n\n-- Process 3 terminated with the following error:\n" + block, "in process 3"),
        ("Caught Own in replica 1 on device 1.\nOriginal " + block, "in replica 1 on device 1"),
    ):
        reported = error_details.describe(RuntimeError(text), None, Path("/job"), Path("/payload"))
        assert (reported.exception, reported.message) == ("Own", f"not so ({where})")
        assert (reported.file, reported.line, reported.code) == ("a.py", 7, "g()")


def test_an_exception_whose_str_raises_is_reported_by_its_name_and_line(tmp_path: Path) -> None:
    script = (
        "class Bad(Exception):\n    def __str__(self):\n        raise RuntimeError('no text')\n\n"
        "import sys\nif sys.argv[1:]:\n    sys.exit(Bad())\nraise Bad()\n"
    )
    rank = run_rank(tmp_path, script)
    assert rank.code == 1
    assert (rank.error["exception"], rank.error["line"]) == ("Bad", 8), rank.output
    assert "__str__" in rank.error["message"]
    assert run_rank(tmp_path, script, "exit").error["exception"] == "SystemExit"


@pytest.mark.parametrize(
    ("script", "file"),
    [
        ("import json\njson.loads('{')\n", "train.py"),
        ("exec(compile('1/0', '/elsewhere/made up.py', 'exec'))\n", "train.py"),
        ("def f(:\n", "train.py"),
        ("import broken\n", "broken.py"),
    ],
    ids=[
        "library below",
        "code without a file",
        "syntax",
        "syntax of a module",
    ],
)
def test_the_file_is_that_of_the_innermost_line_of_the_program(
    tmp_path: Path, script: str, file: str
) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert run_rank(tmp_path, script).error["file"] == file


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
    assert re.match(INSTALLS, line)
    assert not re.match(INSTALLS, line.replace("install", "list"))


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
