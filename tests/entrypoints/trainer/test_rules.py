"""Options that are refused before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.options import Folders, Options
from cloudtrain_trainer.rules import Refused

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def parse_on(ranks: int, line: str, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    return parse(line.split())


@pytest.mark.parametrize(
    ("ranks", "line", "message"),
    [
        (
            2,
            "--strategy single",
            "trains in one process; each of 2 processes would train alone: use --strategy ddp",
        ),
        (2, "--strategy dp", "drives all GPUs from one process; .* use --strategy ddp"),
        (
            1,
            "--eval-only --no-resume",
            "--no-resume is about training, which --eval-only leaves out",
        ),
        (1, "--optimizer lion", "choose from 'adamw', 'sgd'.*module:factory"),
        (1, "--amp half", "choose from"),
        (1, "--epochs 0", "whole number of 1 or more"),
        (1, "--lr nan", "number greater than 0"),
        (1, "--betas 0.9", "such as 0.9,0.95"),
        (1, "--betas 0.9,1", "less than 1"),
        (1, "--betas 0.9,0.95 --optimizer sgd", "--betas is for --optimizer adamw"),
        (1, "--min-lr 0.1 --lr-schedule constant", "--min-lr ends --lr-schedule cosine"),
        (1, "--task nope", "invalid choice: 'nope'"),
        (1, "--strategy nope", "invalid choice: 'nope'"),
        (1, "--checkpoint-every soon", "such as 600 or '10 min'"),
        (1, "--epoch 3", "unrecognized arguments"),
    ],
)
def test_invalid_arguments_and_combinations_are_refused_with_a_hint(
    ranks: int, line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=message):
        parse_on(ranks, line, monkeypatch)


@pytest.mark.parametrize(
    ("line", "example"),
    [
        ("--strategy fsdp", "parallelism/fsdp2"),
        ("--strategy hsdp", "parallelism/fsdp2"),
        ("--strategy hybrid", "parallelism/hybrid"),
        ("--strategy model-parallel", "parallelism/model-parallel"),
        ("--strategy pipeline", "parallelism/pipeline"),
        ("--strategy tp", "parallelism/tensor"),
        ("--task gpt", "language-model"),
        ("--task keras-mnist", "parallelism/keras"),
        ("--task mnist", "images"),
    ],
)
def test_what_became_a_program_of_its_own_is_refused_with_its_example(
    line: str, example: str
) -> None:
    option, name = line.split()
    message = (
        f"argument {option}: {name} is no longer part of the trainer: examples/{example} shows it"
        " as a program of its own"
    )
    with pytest.raises(Refused, match=message):
        parse(line.split())
    assert (EXAMPLES / example / "job.yaml").is_file()


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (1, "--strategy dp --accumulate 2"),
        (2, "--recompute blocks --compile --model mine:factory --data mine:data"),
        (6, "--model mine:factory --strategy ddp"),
        (2, "--strategy ddp --optimizer mine:factory --amp fp16 --ema 0.9"),
    ],
)
def test_valid_combinations_are_accepted(
    ranks: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_on(ranks, line, monkeypatch)


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
