"""A batch-size trial measures its throughput in a few steps, and uses the batch unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloudtrain_trainer.training import memory
from tests.entrypoints.groups import StartGroup

pytestmark = pytest.mark.once

MEASURE = {"CLOUDTRAIN_MEASURE": "samples_per_s"}
HOOKS = "tests.entrypoints.rank_hooks"


def test_ranks_measure_their_throughput_and_leave_neither_model_nor_checkpoint(
    group: StartGroup,
) -> None:
    ranks = group(2, "--task digits --batch-size 600", CLOUDTRAIN_MODEL_DIR="model", **MEASURE)
    ranks.succeed()
    (event,) = ranks.events("metrics")
    assert event["values"].keys() == {"samples_per_s"}
    rate = event["values"]["samples_per_s"]
    steps = event["step"] - 3
    assert steps >= 5, "an epoch has two: it has trained for several"
    (seconds,) = re.findall(
        rf"^measured {steps} steps in ([\d.]+) s:", ranks.output(), re.MULTILINE
    )
    assert rate * float(seconds) == pytest.approx(600 * steps, rel=0.02)
    metrics = json.loads((ranks.folder / "cloudtrain-output/output/metrics.json").read_text())
    assert metrics["samples_per_s"] == rate
    assert "parameters_sha256" not in metrics
    assert not [*ranks.folder.rglob("*.safetensors"), *ranks.folder.rglob("step-*")]


def test_ranks_of_a_scaling_curve_report_several_times_with_their_step_times(
    group: StartGroup,
) -> None:
    ranks = group(2, "--task digits --batch-size 64", CLOUDTRAIN_MEASURE_REPORTS="3", **MEASURE)
    ranks.succeed()
    steps = [event["step"] for event in ranks.events("metrics")]
    assert len(steps) == 3
    for rank in (0, 1):
        assert [event["step"] for event in ranks.events("step_times", rank=rank)] == steps


def test_a_batch_that_does_not_fit_is_not_split(group: StartGroup, short_text: Path) -> None:
    flags = "--task gpt --batch-size 128 --epochs 9 --probe-memory yes"
    hook = f"{HOOKS}:limit_rank_1_in_step_3"
    ranks = group(2, flags, before=hook, CLOUDTRAIN_INPUT_TEXT=str(short_text), **MEASURE)
    assert ranks.wait()[1] == memory.OOM_EXIT, ranks.output()
    (error,) = ranks.events("error", rank=1)
    assert error["exception"] == "OutOfMemory"
    assert error["message"].endswith(". This batch does not fit")
    assert not [*ranks.folder.rglob(memory.FILE)]
