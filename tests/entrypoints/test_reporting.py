"""How a rank reports an exception: the original one, with its file and line, whatever its class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain_launcher import error_details
from tests.entrypoints.ranks import run_rank

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


def test_a_file_outside_the_source_is_reported_by_its_absolute_path(tmp_path: Path) -> None:
    rank = run_rank(
        tmp_path, "", "-n", "1", "-r", "1", "import not_there", kind="module", target="json.tool"
    )
    assert rank.code != 0
    assert error_details.display_path("/usr/lib/python3/x.py", tmp_path) == "/usr/lib/python3/x.py"
    assert error_details.display_path("sub/../x.py", tmp_path) == "x.py"
    assert (
        error_details.display_path(f"{tmp_path}-other/x.py", tmp_path) == f"{tmp_path}-other/x.py"
    )


def test_a_crash_below_python_prints_the_python_stack(tmp_path: Path) -> None:
    rank = run_rank(tmp_path, "import os\ndef deep():\n    os.kill(os.getpid(), 11)\ndeep()\n")
    assert rank.code == -11
    assert "Fatal Python error: Segmentation fault" in rank.text
    assert f'File "{tmp_path}/train.py", line 3 in deep' in rank.text
    assert sys.platform == "linux"
