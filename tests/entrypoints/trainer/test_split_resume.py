"""Checkpoints of strategies that split a model: resumed by themselves and by each other."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer.rank_hooks import KILL
from tests.entrypoints.trainer.test_trainer_resume import copy_checkpoint

HOOKS = "tests.entrypoints.trainer.rank_hooks"


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (2, "--strategy fsdp"),
        pytest.param(2, "--strategy tp", marks=pytest.mark.thorough),
        pytest.param(2, "--strategy pipeline --microbatches 4", marks=pytest.mark.thorough),
        pytest.param(4, "--strategy hybrid --tensor 2", marks=pytest.mark.thorough),
        pytest.param(
            4, "--strategy hybrid --stages 2 --microbatches 4", marks=pytest.mark.thorough
        ),
    ],
    ids=["fsdp", "tp", "pipeline", "data x tensor", "data x pipeline"],
)
def test_a_killed_run_of_parts_resumes_bit_identically(
    tmp_path: Path, group: StartGroup, short_text: Path, ranks: int, flags: str
) -> None:
    """Some of its ranks are killed at some moment; batch norm and dropout are included. So is
    the best model.
    """
    chance = random.Random(os.environ.get("SEED", flags))
    flags = (
        f"--batch-size 160 {flags} --max-steps 10 --checkpoint-every-steps 2 --eval-every-steps 2"
        " --patience 9"
    )
    text = {"CLOUDTRAIN_INPUT_TEXT": str(short_text)} if "gpt" in flags else {}
    whole = group(ranks, flags, folder="whole", **text).succeed()
    victims = chance.sample(range(ranks), chance.randint(1, ranks))
    moment = [chance.randint(4, 8), round(chance.random() * 0.05, 4), *victims]
    killed = group(
        ranks,
        flags,
        folder="killed",
        before=f"{HOOKS}:kill_at_a_moment",
        **{KILL: " ".join(map(str, moment))},
        **text,
    )
    assert any(killed.wait()), "it ended before it was killed"
    restarted = group(ranks, flags, folder="killed", **text)
    assert restarted.succeed()["parameters_sha256"] == whole["parameters_sha256"], (
        f"killed at {moment}\n{restarted.output()}"
    )
    (resumed,) = restarted.events("resumed")
    assert 0 < resumed["step"] <= 10
    (expected, *_), (actual, *_) = (
        sorted((tmp_path / name).glob("*/model/model.*")) for name in ("whole", "killed")
    )
    assert actual.read_bytes() == expected.read_bytes(), "the best weights"


@pytest.mark.once
@pytest.mark.parametrize(
    ("saved_by", "remaining"),
    [
        (
            (3, "--strategy fsdp"),
            [
                (2, "--strategy fsdp"),
                (2, "--strategy tp"),
                (1, "--strategy single"),
            ],
        ),
        ((4, "--strategy hybrid --tensor 2"), [(2, "--strategy pipeline")]),
        (
            (4, "--strategy hybrid --stages 2"),
            [(2, "--strategy fsdp")],
        ),
    ],
    ids=["fsdp", "data x tensor", "data x pipeline"],
)
def test_other_strategies_and_ranks_resume_with_the_same_loss(
    tmp_path: Path,
    group: StartGroup,
    short_text: Path,
    saved_by: tuple[int, str],
    remaining: list[tuple[int, str]],
) -> None:
    """The evaluation after the next step must equal that of the uninterrupted run."""
    flags = (
        "--task gpt --epochs 1 --max-steps 3 --checkpoint-every-steps 2 --batch-size 24 --warm-up 0"
    )
    text = {"CLOUDTRAIN_INPUT_TEXT": str(short_text)}
    ranks, strategy = saved_by
    whole = group(ranks, f"{flags} {strategy}", folder="whole", **text)
    whole.succeed()
    (expected,) = whole.events("metrics")
    for number, (ranks, strategy) in enumerate(remaining):
        copy_checkpoint(whole, 2, tmp_path / f"resumed-{number}")
        resumed = group(ranks, f"{flags} {strategy}", folder=f"resumed-{number}", **text)
        resumed.succeed()
        assert [event["step"] for event in resumed.events("resumed")] == [2], resumed.output()
        (metrics,) = resumed.events("metrics")
        assert metrics["step"] == expected["step"] == 3
        loss = metrics["values"]["val_loss"]
        assert loss == pytest.approx(expected["values"]["val_loss"], rel=2e-6), strategy


@pytest.mark.once
def test_another_layout_of_the_same_strategy_resumes_from_the_weights_alone(
    tmp_path: Path, group: StartGroup
) -> None:
    """The random generators of each rank fit only the layout that saved them; the log reports this."""
    flags = "--task digits --epochs 1 --batch-size 36 --strategy hybrid"
    saved = group(4, f"{flags} --stages 2 --microbatches 6 --max-steps 2", folder="saved")
    saved.succeed()
    copy_checkpoint(saved, 2, tmp_path / "resumed")
    resumed = group(4, f"{flags} --tensor 2 --max-steps 3", folder="resumed")
    assert resumed.succeed()["step"] == 3
    expected = "from a checkpoint of 4 (hybrid --stages 2, now hybrid --tensor 2): weights"
    assert expected in resumed.output(), resumed.output()


@pytest.mark.parametrize(
    ("ranks", "flags", "writers"),
    [
        (4, "--strategy hybrid --stages 2", [0, 1]),
    ],
    ids=["data x pipeline"],
)
def test_ranks_that_hold_one_complete_model_write_it_and_one_process_resumes(
    group: StartGroup, ranks: int, flags: str, writers: list[int]
) -> None:
    """Ranks with copies of the same shards copy nothing to host memory. Only rank 0 gathers the
    full weights.
    """
    base = "--task digits --epochs 1 --max-steps 1 --batch-size 32"
    several = group(
        ranks,
        f"{base} {flags}",
        before="tests.entrypoints.trainer.split_hooks:check_gathered_weights",
    )
    fingerprint = several.succeed()["parameters_sha256"]
    assert [
        rank for rank, log in enumerate(several.logs) if "copied to host memory" in log.read_text()
    ] == writers
    single = group(1, f"{base} --strategy single")
    assert single.succeed()["parameters_sha256"] == fingerprint, single.output()
    assert [event["step"] for event in single.events("resumed")] == [1], single.output()
