"""Ranks that are still there long after others have ended well: reported once, with their stacks,
and not an error.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher import late_ranks
from cloudtrain_launcher.contract import read_job
from cloudtrain_launcher.events import RankEnded, RankStarted
from cloudtrain_launcher.hang_verdict import Sample
from cloudtrain_launcher.late_ranks import LateRanks, rank_names
from cloudtrain_launcher.processes import is_alive
from cloudtrain_launcher.rank_tracker import RankTracker
from tests.entrypoints.test_launcher import document, events, finish, output_until, start
from tests.support.waiting import eventually

EVALUATING_ALONE = """
import os
def evaluate():
    while not os.path.exists("go"):
        sum(number * number for number in range(1000))
if os.environ["RANK"] == "0":
    evaluate()
"""
STACK = """Current thread 0x02 (most recent call first):
  File "/job/train.py", line 7 in evaluate
"""


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_rank_that_works_on_alone_is_reported_with_its_stack_and_left_alone(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, EVALUATING_ALONE, processes=2, hang_seconds=8)
    text = output_until(process, '"activity":"rank 1 ended, waiting for rank 0"')
    (tmp_path / "go").touch()
    text += finish(process)
    assert process.returncode == 0, text
    (line,) = (line for line in text.splitlines() if "is still running" in line)
    assert line.startswith("[node 0] rank 1 ended ")
    assert line.endswith(
        " s ago with exit code 0; rank 0 is still running; nothing has been heard since"
    )
    # Too little CPU looks like none.
    assert re.search(r"^\[node 0\] rank 0 is (busy|blocked):$", text, re.MULTILINE)
    assert any(
        line.startswith("[node 0]   File") and "in evaluate" in line for line in text.splitlines()
    )
    assert [event for event in events(text) if event["type"] == "error"] == []


class Node:
    """A node of three ranks whose processes are made up, and what its launcher says."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, alive: tuple[int, ...]
    ) -> None:
        (tmp_path / "job.json").write_text(json.dumps(document(processes=3, hang_seconds=400)))
        job = read_job(tmp_path / "job.json")
        self.said: list[str] = []
        self.activities: list[str] = []
        self.ranks = RankTracker(job, 0)
        monkeypatch.setattr("cloudtrain_launcher.rank_tracker.is_alive", alive.__contains__)
        monkeypatch.setattr(
            late_ranks, "emit", lambda event: self.activities.append(event.activity)
        )
        self._late = LateRanks(job, self.ranks, tmp_path, self.said.append)
        monkeypatch.setattr(self._late, "_samples", Samples())
        for number in range(3):
            self.ranks.on_event(
                RankStarted(rank=number, local_rank=number, time=1.0, pid=100 + number)
            )

    def end(self, *ranks: int) -> None:
        """These ranks report that they have ended well."""
        for number in ranks:
            self.ranks.on_event(RankEnded(rank=number, exitcode=0, time=2.0))

    def hear_nothing(self, seconds: float) -> None:
        """Receive no samples for this time; the launcher looks often enough."""
        for _ in range(10):
            self._late._next_sample = 0.0
            self._late.check(seconds)


class Samples:
    """All ranks answer with the same stack."""

    def __init__(self) -> None:
        self._known: dict[int, list[Sample]] = {}

    def clear(self) -> None:
        self._known = {}

    def take(self, processes: dict[int, int]) -> None:
        for number in processes:
            samples = self._known.setdefault(number, [])
            samples.append(Sample(float(len(samples)), 0.0, STACK))

    def by_rank(self) -> dict[int, list[Sample]]:
        return self._known

    def count(self) -> int:
        return min(map(len, self._known.values()), default=0)


def test_nothing_is_said_while_all_run_or_something_is_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(monkeypatch, tmp_path, alive=(100, 101, 102))
    node.hear_nothing(1000)
    node.end(1)
    node.hear_nothing(59)
    assert (node.said, node.activities) == ([], [])


def test_it_is_said_once_and_taken_back_when_something_is_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(monkeypatch, tmp_path, alive=(100,))
    node.end(1, 2)
    node.hear_nothing(61)
    node.hear_nothing(90)
    assert "ranks 1 and 2 ended" in node.said[0]
    assert node.said[0].endswith(
        "with exit code 0; rank 0 is still running; nothing has been heard since"
    )
    assert node.said[1:] == ["rank 0 is blocked:", '  File "/job/train.py", line 7 in evaluate']
    node.hear_nothing(0)
    node.hear_nothing(61)
    assert node.activities == ["ranks 1 and 2 ended, waiting for rank 0", ""]


def test_a_rank_that_is_stuck_on_its_way_out_is_told_from_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(monkeypatch, tmp_path, alive=(100, 101))
    node.end(1, 2)
    node.hear_nothing(61)
    assert "rank 2 ended" in node.said[0]
    assert (
        "; rank 0 is still running; rank 1 is at the end of the program, but not gone; "
        in node.said[0]
    )
    assert node.activities == ["rank 2 ended, waiting for ranks 0 and 1"]


def test_nothing_is_said_when_all_are_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    node = Node(monkeypatch, tmp_path, alive=())
    node.end(0, 1, 2)
    node.hear_nothing(61)
    assert node.said == []


@pytest.mark.linux("processes are listed in /proc")
def test_ended_process_is_not_alive_before_its_exit_code_is_collected() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid)
    stdin: Any = process.stdin
    stdin.close()
    assert eventually(lambda: not is_alive(process.pid))
    process.wait()
    assert not is_alive(process.pid)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], ""),
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 2, 5], "ranks 0, 2 and 5"),
        ([3, 1, 2], "ranks 1 to 3"),
    ],
)
def test_ranks_are_named_briefly(ranks: list[int], expected: str) -> None:
    assert rank_names(ranks) == expected
