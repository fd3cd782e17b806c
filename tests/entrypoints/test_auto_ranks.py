"""`--strategy auto` in real ranks: all train by the cheapest plan that fits the smallest of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.memory import device
from cloudtrain_trainer.memory.alone import World
from cloudtrain_trainer.memory.rehearsal import rehearse
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.rank_hooks import RANK_MEMORY

HOOK = "tests.entrypoints.rank_hooks:have_memory"
FLAGS = "--task gpt --batch-size 64 --max-steps 1 --workers 0"


def enough_for(flags: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes with which a rank of two on a CPU surely has enough for these flags."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    held = rehearse(parse(f"{FLAGS} {flags}".split()), World(2, 2), like_gpu=False, amp="no")
    return device.needed(held.peak, "", 2).high


def test_ranks_train_by_the_cheapest_plan_that_fits_the_smallest(
    group: StartGroup, short_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = enough_for("--strategy ddp --accumulate 4", monkeypatch)
    ranks = group(2, f"{FLAGS} --strategy auto", before=HOOK, CLOUDTRAIN_INPUT_TEXT=str(short_text),
                  **{RANK_MEMORY: f"{1 << 40} {smallest}"})  # fmt: skip
    assert ranks.succeed()["step"] == 1
    assert (
        "--strategy auto: --strategy ddp --accumulate 4, the cheapest plan that fits"
        in ranks.output()
    )
    assert len(ranks.fingerprints()) == 1


def test_where_nothing_fits_ranks_try_what_takes_least_and_say_so(
    group: StartGroup, short_text: Path
) -> None:
    ranks = group(2, f"{FLAGS} --strategy auto", before=HOOK, CLOUDTRAIN_INPUT_TEXT=str(short_text),
                  **{RANK_MEMORY: f"{1 << 20} {1 << 20}"})  # fmt: skip
    assert ranks.succeed()["step"] == 1
    line = (
        "--strategy auto: --strategy fsdp --accumulate 32 --recompute blocks, no plan surely fits,"
        " and this one takes"
    )
    assert line in ranks.output()
