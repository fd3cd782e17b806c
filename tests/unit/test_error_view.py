"""Errors on a terminal: the wrong line with a mark below it, wrapped, and alike from the command
line to a check.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from cloudtrain.cli import main

JOB = """\
name: digits
resources:
  gpus: 8
  gpu: A100-80
"""


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, *words: str, columns: int = 80, colour: bool = False
) -> list[str]:
    """Return the lines that a command writes to a terminal of this width."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    (monkeypatch.delenv if colour else lambda name, **_: monkeypatch.setenv(name, "1"))(
        "NO_COLOR", raising=False
    )
    with pytest.raises(SystemExit):
        main(list(words))
    return screen.getvalue().splitlines()


def test_a_mistake_is_shown_with_its_line_and_a_mark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text(JOB)
    lines = on_terminal(monkeypatch, "check")
    assert lines[:4] == [
        "error: resources.gpu: unknown GPU 'A100-80' (did you mean 'A100-80GB'?)",
        "  at job.yaml:4:3",
        "  4 |   gpu: A100-80",
        "    |   ^^^",
    ]
    assert lines[4].startswith("  hint: known: A10, A100")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_it_wraps_at_the_width(folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    (folder / "job.yaml").write_text(
        JOB + "args: {" + "x" * 300 + ": 1}\nnmae: " + "word " * 60 + "\n"
    )
    assert max(map(len, on_terminal(monkeypatch, "check", columns=columns))) <= columns


def test_a_line_that_may_hold_a_secret_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text("secrets: {HF: hunter2}\n")
    lines = on_terminal(monkeypatch, "check")
    assert "  at job.yaml:1:11" in lines
    assert "hunter2" not in "\n".join(lines)


def test_a_mistake_that_no_line_makes_is_blamed_on_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text("name: digits\n")
    lines = on_terminal(monkeypatch, "check", "--provider", "aws")
    assert lines[:2] == ["error: aws.region: is not set", "  at job.yaml"]
    assert not any(re.match(r" +\d* \|", line) for line in lines)
