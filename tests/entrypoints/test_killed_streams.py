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


@pytest.mark.parametrize("kind", ["numbers", "shards", "forgetful"])
def test_a_resume_after_a_kill_continues_at_the_very_sample(
    tmp_path: Path, group: StartGroup, kind: str
) -> None:
    """An epoch has ten steps: the kill is in the first or in the second."""
    chance = random.Random(int(os.environ.get("SEED", str(time.time_ns()))))
    flags = f"--task {OWN}:{kind} {FLAGS} --checkpoint-every-steps 2"
    kill = f"{chance.randint(5, 13)} 0 {chance.randint(0, 1)}"
    killed = group(2, flags, before="tests.entrypoints.rank_hooks:kill_at_a_moment", **{KILL: kill})
    assert any(killed.wait()), "it ended before it was killed"
    restarted = group(2, flags)
    assert restarted.succeed()["step"] == STEPS
    (resumed,) = restarted.events("resumed")
    assert 0 < resumed["step"] <= STEPS
    twice = STEPS * BATCH - SAMPLES
    used = exported(tmp_path / "cloudtrain-output/model")["used"].tolist()
    assert used == [-2.0] * twice + [-1.0] * (SAMPLES - twice), (
        f"killed at {kill}, resumed at {resumed['step']}"
    )
