"""Logs and events of any length: what is held in memory does not grow with them, and no line is
lost or told twice.
"""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.runs.files import BLOCK_BYTES, end_of_lines, read_lines, read_lines_backward
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogReader, format_timestamp
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Ended
from tests.support.samples import born, write_events

LINES = 20_000
ENDED = {"type": "ended", "time": 5000.0, "state": "succeeded"}


@pytest.fixture
def run(store: RunStore) -> RunFolder:
    """Two nodes that have printed 20,000 lines, about 3 MB, in turns; and as many events."""
    folder = born(store, "a-1")
    for node in range(2):
        lines = (
            f"{format_timestamp(1e9 + i)} [rank {node}] line {i} {'x' * 80}\n"
            for i in range(node, LINES, 2)
        )
        (folder.path / "logs" / f"node-{node}.log").write_text("".join(lines))
    with folder.events_file.open("a") as file:
        for i in range(LINES):
            file.write(
                f'{{"type":"metrics","time":101.0,"node":0,"rank":0,"seq":{i},"values":{{"loss":{i}.5}}}}\n'
            )
    write_events(folder, ENDED)
    return folder


def peak(work: Callable[[], object]) -> int:
    """The most that was held at once while something was done, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bytes_of(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def test_a_log_is_passed_on_line_by_line_and_its_tail_as_it_is(run: RunFolder) -> None:
    size = bytes_of(run.path, "logs/node-*.log")
    loaded = Run(run)
    loaded.status()
    held = peak(lambda: [None for line in loaded.logs() if line.node > 1])
    assert held < size / 5
    assert [line.text.split()[1] for line in loaded.logs(tail=3)] == [
        str(LINES - 3 + i) for i in range(3)
    ]
    assert [line.text.split()[1] for line in loaded.logs(tail=2, rank=1)] == [
        str(LINES - 3),
        str(LINES - 1),
    ]
    assert sum(1 for _ in loaded.logs(rank=0)) == LINES / 2
    assert list(loaded.logs(tail=0)) == []


def test_a_long_history_of_events_is_folded_as_it_is_read(run: RunFolder) -> None:
    size = run.events_file.stat().st_size
    loaded = Run(run)
    assert peak(loaded.status) < size / 3
    assert loaded.cached_status().metrics == {"loss": LINES - 0.5}
    assert peak(lambda: run.last_event(Ended)) < size / 5


def test_watching_hands_on_every_line_and_event_once_in_parts(run: RunFolder) -> None:
    lines: list[str] = []
    events = parts = 0
    for update in Run(run).watch():
        lines += [line.text.split()[1] for line in update.lines]
        events += len(update.events)
        parts += 1
    assert lines == [str(i) for i in range(LINES)]
    assert (events, parts > 2) == (LINES + 2, True)


def test_lines_that_come_later_are_read_on_from_where_reading_stopped(store: RunStore) -> None:
    folder = born(store, "a-1")
    log = folder.path / "logs" / "node-0.log"
    reader = LogReader(folder)
    reported = []
    for text in ("a\nb", "c\n", "", "d\n\ne\n", "f"):
        with log.open("a") as file:
            file.write(
                "".join(f"{format_timestamp(1.0)} {line}\n" for line in text.split("\n")[:-1])
                + text.rpartition("\n")[2]
            )
        reported.append([line.text for line in reader.read_batch()])
    assert reported[0] == ["a"]
    assert [len(part) for part in reported] == [1, 1, 0, 3, 0]


@pytest.mark.parametrize("seed", range(6))
def test_lines_are_the_same_forwards_and_backwards_whatever_their_length(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [
        chance.choice([0, 1, 7, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
        for _ in range(9)
    ]
    lines = [bytes([97 + at]) * length for at, length in enumerate(lengths)]
    whole = b"".join(line + b"\n" for line in lines)
    file = io.BytesIO(whole + b"not whole yet")
    longest = chance.choice([10, BLOCK_BYTES, 1 << 20])
    assert end_of_lines(file) == len(whole)
    forwards = list(read_lines(file, 0, longest))
    assert [line for line, _ in forwards] == [line[:longest] for line in lines]
    assert forwards[-1][1] == len(whole)
    assert list(read_lines_backward(file, len(whole), longest)) == [
        line[:longest] for line in reversed(lines)
    ]
    for (_, offset), remaining in zip(forwards, range(1, 10), strict=True):
        assert [line for line, _ in read_lines(file, offset, longest)] == [
            line[:longest] for line in lines[remaining:]
        ]


def test_a_line_without_an_end_in_sight_is_not_held_whole() -> None:
    class Endless(io.RawIOBase):
        left = 64 << 20

        def seek(self, place: int, whence: int = 0) -> int:
            return place

        def read(self, size: int = -1) -> bytes:
            self.left -= size
            return b"x" * size if self.left > 0 else b""

    assert peak(lambda: list(read_lines(Endless(), 0))) < 8 << 20  # type: ignore[arg-type]
