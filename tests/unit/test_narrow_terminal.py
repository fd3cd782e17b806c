"""Output on a terminal of 80 columns: no word is broken, and commands can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.cli.terminal import wrapped
from tests.support.in_process import call

WIDTH = 80
JOB = """
name: digits
entrypoint: train.py
resources: {nodes: 2, gpus: 8, gpu: A100, spot: true}
dependencies: [numpy, pandas, scikit-learn, transformers, accelerate, datasets]
limits: {max_runtime: 6 h, max_wait: 12 h}
aws: {role: "arn:aws:iam::123456789012:role/digits", bucket: my-bucket, region: us-east-1}
"""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal of 80 columns, in a folder with a job."""
    monkeypatch.setattr("cloudtrain.cli.terminal.columns", lambda _: WIDTH)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("narrow")
def test_lines_fit_unless_they_are_one_word_or_a_command() -> None:
    result = call("plan", "--provider", "aws")
    long_lines = [line for line in (result.out + result.err).splitlines() if len(line) > WIDTH]
    assert result.out
    assert [
        line for line in long_lines if len(line.split()) > 2 and "cloudtrain " not in line
    ] == []


def test_wrapped_text_continues_below_the_text_of_its_label() -> None:
    line = "  cost     50.50 USD/h on demand, at most 50.00 USD"
    assert wrapped(line, 40) == "  cost     50.50 USD/h on demand, at\n           most 50.00 USD"


def test_commands_and_long_words_stay_whole() -> None:
    command = "  next     cloudtrain rerun digits-k2x9 --set limits.max_cost=50"
    assert wrapped(command, 40) == command
    path = "  folder   /a/path/that/has/no/spaces/and/more/than/forty/columns"
    assert wrapped(path, 40).split() == path.split()
