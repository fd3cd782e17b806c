"""TensorBoard shows the numbers of the run's events, read back from the files of the real package."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.groups import Group, StartGroup

pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")

Curves = dict[str, list[tuple[int, Any]]]
"""(step, value) of every point, by the name of the curve."""


def read_back(folder: Path) -> Curves:
    """As TensorBoard itself reads them."""
    events = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def from_events(runs: list[dict[str, list[dict[str, Any]]]]) -> Curves:
    """From the events of several starts of one run, by kind."""
    curves: Curves = defaultdict(list)
    about = {"type", "time", "node", "rank", "seq", "epoch", "epochs", "step", "steps", "unit"}
    for events in runs:
        for event in events["metrics"]:
            for name, value in event["values"].items():
                curves[name].append((event["step"], pytest.approx(value, rel=1e-6)))  # its files hold float32
        for event in events["progress"]:
            for name in event.keys() - about:
                curves[f"train/{name}"].append((event["step"], pytest.approx(event[name], rel=1e-6)))
    return dict(curves)


def test_tensorboard_shows_the_numbers_of_the_events_and_continues_after_a_resume(
    tmp_path: Path, group: StartGroup
) -> None:
    runs = []
    for epochs in (2, 3):
        ranks: Group = group(1, f"--batch-size 256 --lr-schedule constant --epochs {epochs}")
        ranks.succeed()
        assert "TensorBoard is turned off" not in ranks.output()
        runs.append({kind: ranks.events(kind) for kind in ("metrics", "progress")})
    found = read_back(tmp_path / "cloudtrain-output/output/tensorboard")
    assert [step for step, _ in found["val_loss"]] == [5, 10, 15]
    assert found == from_events(runs)
