"""What TensorBoard shows of a training is what the training told: read back from the files of the real package."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.test_training import TRAIN, Launch, only

pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")

Curves = dict[str, list[tuple[int, Any]]]
"""(step, value) of every point, by the name of the curve."""


def read_back(folder: Path) -> Curves:
    """As TensorBoard itself reads them."""
    events = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def told(events: list[dict[str, Any]]) -> Curves:
    """From the events of the run."""
    curves: Curves = defaultdict(list)
    about = {"type", "time", "node", "rank", "seq", "epoch", "epochs", "step", "steps", "unit"}
    for event in only(events, "metrics"):
        for name, value in event["values"].items():
            curves[name].append((event["step"], pytest.approx(value, rel=1e-6)))  # its files hold float32
    for event in only(events, "progress"):
        for name in event.keys() - about:
            curves[f"train/{name}"].append((event["step"], pytest.approx(event[name], rel=1e-6)))
    return dict(curves)


def test_tensorboard_shows_the_numbers_that_were_told_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    argv = (str(TRAIN), "--batch-size", "256", "--lr-schedule", "constant", "--epochs")
    first = Launch(tmp_path, *argv, "2")
    events = first.finish()
    again = Launch(tmp_path, *argv, "3")
    events += again.finish()
    output = "".join(first.lines + again.lines)
    assert (first.process.returncode, again.process.returncode) == (0, 0), output
    assert "TensorBoard is turned off" not in output
    found = read_back(tmp_path / "cloudtrain-output/output/tensorboard")
    assert [step for step, _ in found["val_loss"]] == [5, 10, 15]
    assert found == told(events)
