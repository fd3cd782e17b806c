"""Scripts and notebooks are parsed before a machine is paid for, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.source.programs import foreign_imports, install_lines, names_in, program_fault
from tests.support.in_process import call

PROGRAMS = {
    "long chain of minus": b"-" * 1_000_000 + b"1",
    "long chain of not": b"not " * 200_000 + b"1",
    "long chain of elif": b"if a: pass\n" + b"elif b: pass\n" * 5_000,
    "long chain of attributes": b"a" + b".b" * 50_000,
    "long test for type checkers": b"if " + b"a + " * 3_000 + b"1: import b\n",
    "brackets": b"(" * 100_000,
    "long number": b"x = " + b"9" * 5_000,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_too_complex_to_parse_is_no_error_of_ours(tmp_path: Path, name: str) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(PROGRAMS[name])
    fault = program_fault(file)
    assert fault is None or fault.message.startswith("is not Python: ")
    assert len(foreign_imports(tmp_path, file)) <= 1
    names_in(file)


@pytest.mark.parametrize(
    ("content", "message", "depends_on_version"),
    [
        (b"import os\n", None, None),
        (b"def f(:\n", "is not Python: invalid syntax", True),
        (b"a = 1\0", "is not Python: source code string cannot contain null bytes", False),
        (b'a = "\xe4"\n', "is not Python: (unicode error) 'utf-8' codec can't decode", False),
        (b"# coding: latin-1\na = '\xe4'\n", None, None),
    ],
    ids=["right", "syntax", "NUL", "bad bytes", "declared encoding"],
)
def test_only_syntax_may_depend_on_the_version_of_python(
    tmp_path: Path, content: bytes, message: str | None, depends_on_version: bool | None
) -> None:
    (tmp_path / "train.py").write_bytes(content)
    fault = program_fault(tmp_path / "train.py")
    if message is None:
        assert fault is None
    else:
        assert fault is not None
        assert fault.message.startswith(message)
        assert fault.depends_on_version is depends_on_version


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [3]}',
        '{"cells": [{"cell_type": "code", "source": [1]}]}',
        '{"cells": ' + "9" * 5_000 + "}",
        '{"cells": {}}',
        "[" * 100_000,
        "{",
        "",
    ],
    ids=["cell", "source", "number", "mapping", "nesting", "cut", "empty"],
)
def test_a_file_that_is_not_a_notebook_has_no_cells(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    fault = program_fault(tmp_path / "a.ipynb")
    assert fault is not None
    assert fault.message.startswith("is not a notebook: ")
    assert install_lines(tmp_path / "a.ipynb") == []


def test_syntax_of_another_python_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("def f(:\n")
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nlimits: {max_runtime: 1 h}\n")
    monkeypatch.chdir(tmp_path)
    result = call("plan", "--provider", "aws")
    assert result.code == 0, result.err
    assert "note: job.yaml:1:1: entrypoint: train.py:1: is not Python: invalid syntax" in result.out


def test_many_more_processes_than_cores_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nresources: {processes: 500}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    result = call("check")
    warning = (
        "job.yaml:2:13: resources.processes: 500 processes share this machine, which has 2 cores"
    )
    assert result.code == 0, result.err
    assert warning in result.err
    assert "share this machine" not in call("check", "--set", "resources.processes=16").err
