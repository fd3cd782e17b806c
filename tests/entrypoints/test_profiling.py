"""`--profile 3:4` leaves a trace of each rank for those steps, and never ends training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.entrypoints.groups import StartGroup

PROFILE = Path("cloudtrain-output/output/profile")
STEPS = "--epochs 1 --batch-size 64 --max-steps 6 --clip-norm 1"


def test_each_rank_leaves_a_trace_of_the_steps_and_training_is_as_without(
    group: StartGroup, tmp_path: Path
) -> None:
    without = group(2, STEPS, folder="without")
    ranks = group(2, f"{STEPS} --profile 3:4", folder="with")
    expected = without.succeed()["parameters_sha256"]
    assert ranks.succeed()["parameters_sha256"] == expected
    (event,) = ranks.events("profile")
    assert (event["first_step"], event["last_step"], event["path"]) == (3, 4, str(PROFILE))
    files = tmp_path / "with" / PROFILE
    assert {path.name for path in files.iterdir()} == {f"rank-{rank}.json.gz" for rank in (0, 1)}
    for rank in (0, 1):
        trace = json.loads(gzip.decompress((files / f"rank-{rank}.json.gz").read_bytes()))
        steps = [
            event
            for event in trace["traceEvents"]
            if event.get("name", "").startswith("Optimizer.step#")
        ]
        assert len(steps) == 2
    progress = ranks.events("progress")
    assert all(0 < values["lr"] <= 1 and values["gradient_norm"] > 0 for values in progress)


def test_a_profile_of_steps_that_never_come_is_a_warning(group: StartGroup, tmp_path: Path) -> None:
    ranks = group(1, f"{STEPS} --profile 7:9")
    ranks.succeed()
    assert "warning: --profile 7:9: training has ended at step 6" in ranks.output()
    assert not (tmp_path / PROFILE).exists()


def test_a_profile_that_fails_does_not_end_training(group: StartGroup, tmp_path: Path) -> None:
    PROFILE_PARENT = tmp_path / PROFILE.parent
    PROFILE_PARENT.mkdir(parents=True)
    (tmp_path / PROFILE).write_text("a file in place of the folder")
    ranks = group(1, f"{STEPS} --profile 2:3")
    ranks.succeed()
    assert "--profile is turned off: FileExistsError" in ranks.output()
