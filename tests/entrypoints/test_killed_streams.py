"""Ranks that read a user's iterable are killed with kill -9: a resume trains on every sample as
often as it should.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.entrypoints.groups import StartGroup
from tests.entrypoints.launching import exported
from tests.entrypoints.own_streams import BATCH, SAMPLES
from tests.entrypoints.rank_hooks import KILL

OWN = "tests.entrypoints.own_streams"
STEPS = 15
FLAGS = (
    f"--optimizer {OWN}:optimizer --lr-schedule constant --warm-up 0 --max-steps {STEPS} --epochs 2"
)


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "workers"), [("numbers", 1), ("shards", 2), ("forgetful", 0)], ids=str
)
def test_a_resume_after_a_kill_continues_at_the_very_sample(
    tmp_path: Path, group: StartGroup, kind: str, workers: int
) -> None:
    """An epoch has ten steps: the kill is in the first or in the second."""
    chance = random.Random(int(os.environ.get("SEED", str(time.time_ns()))))
    flags = f"--task {OWN}:{kind} {FLAGS} --checkpoint-every-steps 2 --workers {workers}"
    kill = f"{chance.randint(5, 13)} 0 {chance.randint(0, 1)}"
    killed = group(2, flags, before="tests.entrypoints.rank_hooks:kill_at_a_moment", **{KILL: kill})
    assert any(killed.wait()), "it ended before it was killed"
    restarted = group(2, flags)
    assert restarted.succeed()["step"] == STEPS
    (resumed,) = restarted.events("resumed")
    assert 0 < resumed["step"] <= STEPS
    twice = set(range(STEPS * BATCH - SAMPLES))
    if workers == 2:  # a rank's processes take turns: one reads eight batches, the other seven
        twice = {number for number in range(SAMPLES) if number // 4 < (6, 4)[number % 2]}
    used = exported(tmp_path / "cloudtrain-output/model")["used"].tolist()
    assert used == [-2.0 if number in twice else -1.0 for number in range(SAMPLES)], (
        f"killed at {kill}, resumed at {resumed['step']}"
    )
