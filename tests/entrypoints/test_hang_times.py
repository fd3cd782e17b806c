"""When a hang is named and ended, by a clock that the test sets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain_launcher import hang
from cloudtrain_launcher.events import Activity, Error, Event
from cloudtrain_launcher.hang_verdict import RankActivity, Sample, describe_wait
from tests.entrypoints.test_launcher_parts import JOB


class BlockedRank:
    """Samples of one rank that stands still."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def clear(self) -> None:
        self.samples.clear()

    def take(self, processes: Mapping[int, int]) -> None:
        self.samples.append(Sample(time.monotonic(), 0.0))

    def by_rank(self) -> dict[int, list[Sample]]:
        return {0: self.samples[-16:]}

    def count(self) -> int:
        return len(self.samples)


def test_a_hang_is_named_after_two_minutes_and_ended_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    emitted: list[tuple[float, Event]] = []
    ended: list[float] = []
    monkeypatch.setattr(hang, "STACK_SIGNAL", 1)
    monkeypatch.setattr(hang, "emit", lambda event: emitted.append((now[0], event)))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 5000.0 + now[0])
    ranks = SimpleNamespace(running=lambda: {0: 1}, rank_of=lambda _: 0, ended=list)
    job = replace(JOB, hang_seconds=1800, nodes=1, processes=1)
    watch = hang.HangWatch(job, ranks, tmp_path, lambda _: None)  # type: ignore[arg-type]
    monkeypatch.setattr(watch, "_samples", BlockedRank())

    def end(error: Error) -> None:
        ended.append(now[0])

    monkeypatch.setattr(watch, "_end", end)
    while not ended:
        now[0] += 1.0
        watch.check(0.0)

    (named, activity), *others = emitted
    assert others == []
    assert isinstance(activity, Activity)
    assert 120 <= named <= 140
    assert activity.time == 5000.0, "the silence counts from its beginning"
    assert activity.activity.startswith("rank 0 is blocked")
    assert 1800 <= ended[0] <= 1900


def test_nobody_is_said_to_wait_for_a_rank_if_nobody_does() -> None:
    blamed = RankActivity(0, "blocked")
    assert describe_wait(blamed, []) == "rank 0 is blocked"
    assert describe_wait(blamed, [RankActivity(1, "blocked")]) == "rank 0 is blocked"
    waiting = [RankActivity(1, "collective", call="barrier")]
    assert describe_wait(blamed, waiting) == "waiting for rank 0, which is blocked"
