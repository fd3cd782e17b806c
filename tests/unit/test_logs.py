"""Logs of a run, one file per node: read whole, backward, and at their ends only."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from cloudtrain.diagnosis import failure
from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogReader, format_timestamp, log_file
from cloudtrain.runs.state import RunState

START = 1_795_892_760.0


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run folder without a log."""
    (tmp_path / "runs" / "digits-1" / "logs").mkdir(parents=True)
    return RunFolder(tmp_path / "runs" / "digits-1")


def write_log(run: RunFolder, node: int, *texts: str, end: str = "\n") -> None:
    """Write a node's log, one line each second; `end` closes the last one."""
    lines = [f"{format_timestamp(START + at)} {text}" for at, text in enumerate(texts)]
    log_file(run.path, node).write_text("\n".join(lines) + end)


def test_the_unfinished_last_line_is_read_if_no_more_will_come(run: RunFolder) -> None:
    write_log(run, 0, "first", "cut o", end="")
    reader = LogReader(run)
    assert [line.text for line in reader.read_all()] == ["first"]
    assert [line.text for line in reader.read_all(unfinished=True)] == ["cut o"]
    assert [line.text for line in reader.read_all(unfinished=True)] == []

    reader = LogReader(run)
    assert [line.text for line in reader.read_backward(unfinished=True)] == ["cut o", "first"]
    assert [line.text for line in reader.read_all(unfinished=True)] == []


def test_lines_have_the_rank_in_front_of_them(run: RunFolder) -> None:
    lines = ("[rank 1] a", "[rank 11] b", "[rank 1 metrics] c", "[rank 0] d", "[rank 1", "e")
    write_log(run, 0, *lines, "[rank 1] cut o", end="")
    write_log(run, 1, "[rank 2] f")

    reader = LogReader(run)
    assert [line.text for line in reader.read_all() if line.rank == 1] == ["a", "c"]
    assert [line.text for line in reader.read_all(unfinished=True) if line.rank == 1] == ["cut o"]


TIMES = (f"{format_timestamp(START)} ", f"{format_timestamp(START + 1)} ", "", "no time ")
TAGS = ("[rank 0] ", "[rank 0]", "[rank 1] ", "[rank 0 metrics] ", "[torchrun] ", "[rank", "")
TEXTS = ("", " x", "x]", "[rank 1] x", "\r", "é", "\udce9", "x" * 300)


@pytest.mark.parametrize("seed", range(8))
def test_lines_read_in_blocks_are_those_read_one_by_one(run: RunFolder, seed: int) -> None:
    lines = ["".join(parts) + "\n" for parts in product(TIMES, TAGS, TEXTS)]
    lines = random.Random(seed).choices(lines, k=5000) + lines[:1] * 5000
    log_file(run.path, 0).write_text("".join(lines), errors="surrogateescape")
    blocks = list(LogReader(run).read_all())
    one_by_one = list(LogReader(run).read_backward())[::-1]
    assert len(blocks) < len(one_by_one) == len(lines)
    assert [line for block in blocks for line in block.lines()] == one_by_one


@pytest.fixture
def few_open_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_open_files")
def test_the_logs_of_a_thousand_nodes_need_no_thousand_open_files(run: RunFolder) -> None:
    for node in range(1000):
        write_log(run, node, f"node {node} is here")

    assert {line.node for line in LogReader(run).read_all()} == set(range(1000))
    assert {line.node for line in LogReader(run).read_backward()} == set(range(1000))
    assert {line.node for _, line in LogReader(run).read_ends(1000, 1000)} == set(range(1000))


@pytest.mark.linux("a file that fails while it is read, in /proc")
def test_a_disk_that_fails_while_a_log_is_read_is_reported(run: RunFolder) -> None:
    log_file(run.path, 0).symlink_to("/proc/self/mem")  # opens, and fails at the first read
    for read in (LogReader(run).read_all, LogReader(run).read_backward):
        with pytest.raises(StorageError, match="cannot be read"):
            list(read())


def test_of_large_logs_the_beginning_and_the_end_are_read(run: RunFolder) -> None:
    texts = [f"line {number} {'x' * 1000}" for number in range(1, 1001)]
    for node in range(2):
        write_log(run, node, *texts)

    reader = LogReader(run)
    steps = list[tuple[int, int]]()
    read = list(reader.read_ends(200_000, 300_000, lambda done, size: steps.append((done, size))))
    for node in range(2):
        numbers = [number for number, line in read if line.node == node]
        shown = [int(line.text.split()[1]) for _, line in read if line.node == node]
        beginning = numbers.index(0)
        assert shown[:beginning] == numbers[:beginning] == list(range(1, beginning + 1))
        assert shown[beginning:] == list(range(shown[beginning], 1001))
        assert 90 < beginning < 110
        assert 140 < len(shown) - beginning < 160

    sizes = [log_file(run.path, node).stat().st_size for node in range(2)]
    assert abs(sum(sizes) - reader.left_out - 500_000) < 4_000
    assert steps[-1] == (500_000, 500_000)


@pytest.mark.parametrize("number", [1100, 1300, 1500, 1700, 2500])
def test_the_end_is_read_whatever_the_beginning_takes_of_it(run: RunFolder, number: int) -> None:
    texts = [f"line {at} {'x' * 80}" for at in range(number)]
    at_once = [f"{format_timestamp(START)} [rank 0] {text}\n" for text in texts]
    log_file(run.path, 0).write_text("".join(at_once))
    reader = LogReader(run)
    read = [line.text for _, line in reader.read_ends(1 << 16, 1 << 16)]
    assert read[-500:] == texts[-500:]
    assert (read == texts) is (reader.left_out == 0)


def test_a_diagnosis_of_a_run_says_what_it_has_not_read(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "HEAD_BYTES", 100_000)
    monkeypatch.setattr(failure, "TAIL_BYTES", 100_000)
    texts = [f"step {number} {'x' * 1000}" for number in range(3000)]
    write_log(run, 0, *texts, "[rank 0] torch.OutOfMemoryError: CUDA out of memory")
    diagnosis = diagnose_run(run, RunState(run_id="digits-1", state="failed"))
    assert diagnosis.rule is not None
    assert diagnosis.rule.name == "gpu-out-of-memory"
    assert diagnosis.notes == ("2 MiB in the middle of the log were not read",)
