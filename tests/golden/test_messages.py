"""Messages held against a file: what a user reads about a mistake changes only on purpose.

`CLOUDTRAIN_REWRITE_GOLDEN=1 pytest tests/golden` writes the file anew from the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import REWRITE
from tests.golden.messages import enter, plain, read_cases, rewrite, stored
from tests.support.in_process import call

CASES = read_cases()
EVERY_KIND = "mistakes of every kind: "
TAKES_A_PROCESS = {"no torch", "no such Python", "unknown option"}
"""Mistakes that only another Python can see, of which `plan` starts none; and one of usage."""
OF_CHECK = [
    title
    for title, case in CASES.items()
    if title.startswith(EVERY_KIND)
    and case.words[0] == "check"
    and title.removeprefix(EVERY_KIND) not in TAKES_A_PROCESS
]


@pytest.mark.parametrize("title", CASES)
def test_a_mistake_is_reported_as_it_was(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[title]
    enter(case, tmp_path, monkeypatch)
    result = call(*case.words)
    assert "Traceback" not in result.out + result.err
    assert "bug in cloudtrain" not in result.err
    assert "hunter2" not in result.out + result.err
    if result.code and not case.command.startswith("plan"):  # which shows what it would refuse
        assert result.out == ""

    messages = f"exit {result.code}\n{plain(result.err, tmp_path)}"
    if REWRITE:
        rewrite(title, messages, CASES)
    assert messages == stored().get(title)


@pytest.mark.parametrize("title", OF_CHECK)
def test_plan_reports_the_errors_that_check_reports(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(CASES[title], tmp_path, monkeypatch)
    result = call("plan", *CASES[title].words[1:])
    assert stored()[title].startswith(f"exit {result.code}\n{plain(result.err, tmp_path)}")


def test_the_file_has_the_messages_of_the_table_and_no_others() -> None:
    assert list(stored()) == list(CASES)
