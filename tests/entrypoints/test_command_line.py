"""The trainer's command line: defaults, refusals, and no import of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.rules import Refused
from tests.support.waiting import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--amp", "half"], "choose from"),
        (["--epochs", "0"], "whole number of 1 or more"),
        (["--lr", "nan"], "number greater than 0"),
        (["--betas", "0.9"], "such as 0.9,0.95"),
        (["--betas", "0.9,1"], "less than 1"),
        (["--betas", "0.9,0.95", "--optimizer", "sgd"], "--betas is for --optimizer adamw"),
        (["--min-lr", "0.1", "--lr-schedule", "constant"], "--min-lr ends --lr-schedule cosine"),
        (["--task", "nope"], "invalid choice: 'nope'"),
        (["--strategy", "nope"], "invalid choice: 'nope'"),
        (["--checkpoint-every", "soon"], "such as 600 or '10 min'"),
        (["--epoch", "3"], "unrecognized arguments"),
    ],
)
def test_invalid_arguments_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(Refused, match=message):
        parse(argv)


def test_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parse([]).strategy, parse([]).checkpoint_every, parse([]).keep) == ("single", 600, 3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_EVERY", "90")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", "7")
    monkeypatch.setenv("CLOUDTRAIN_MODEL_DIR", "/models")
    assert (parse([]).strategy, parse([]).checkpoint_every, parse([]).keep) == ("ddp", 90, 7)
    assert parse(["--checkpoint-every", "1.5 h"]).checkpoint_every == 5400
    assert Folders.from_environment().model == Path("/models")
    assert Folders.from_environment().output == Path("cloudtrain-output/output")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", "none")
    with pytest.raises(Refused, match="--keep: expected a whole number"):
        parse([])


def test_arguments_are_parsed_without_torch() -> None:
    code = (
        "import sys, json; sys.path[:0] = sys.argv[1:3]; from cloudtrain_trainer import arguments;"
        " arguments.parse([]);print(json.dumps(sorted(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, str(ENTRYPOINTS), str(ENTRYPOINTS / "job")]
    loaded = set(
        json.loads(
            subprocess.run(
                argv, capture_output=True, text=True, check=True, timeout=HANG_SECONDS
            ).stdout
        )
    )
    assert not loaded & {"torch", "numpy", "sklearn"}
