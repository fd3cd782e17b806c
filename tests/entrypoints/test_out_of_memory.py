"""Two ranks, of which one runs out of memory, train with smaller micro-batches and get the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.groups import ForkServer, Group, StartGroup

FLAGS = "--task gpt --epochs 1 --max-steps 6 --batch-size 256 --checkpoint-every-steps 2 --warm-up 0"
HOOKS = "tests.entrypoints.rank_hooks"


@pytest.fixture(scope="module")
def expected(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory, short_text: Path) -> dict[str, float]:
    """The last metrics of the same run with enough memory."""
    folder = tmp_path_factory.mktemp("enough")
    ranks = Group(fork_server, folder, 2, FLAGS, CLOUDTRAIN_INPUT_TEXT=str(short_text))
    ranks.succeed()
    values: dict[str, float] = ranks.events("metrics")[-1]["values"]
    return values


def check_metrics(ranks: Group, expected: dict[str, float]) -> None:
    """Equal but for rounding: the sums have another order."""
    found = ranks.events("metrics")[-1]["values"]
    for name in ("loss", "val_loss"):
        assert found[name] == pytest.approx(expected[name], rel=5e-6)


def test_probing_finds_a_micro_batch_that_fits_on_all_ranks(
    group: StartGroup, expected: dict[str, float], short_text: Path
) -> None:
    hook, text = f"{HOOKS}:limit_rank_1_before_probing", str(short_text)
    ranks = group(2, f"{FLAGS} --probe-memory yes", before=hook, CLOUDTRAIN_INPUT_TEXT=text)
    ranks.succeed()
    (event,) = ranks.events("memory")
    assert event["refused"][0] == 128
    assert event["micro_batch"] * event["parts"] == 128
    check_metrics(ranks, expected)


def test_after_running_out_in_training_the_next_start_halves_the_micro_batch(
    group: StartGroup, expected: dict[str, float], short_text: Path
) -> None:
    hook, text = f"{HOOKS}:limit_rank_1_in_step_3", str(short_text)
    ranks = group(2, FLAGS, before=hook, CLOUDTRAIN_INPUT_TEXT=text)
    assert ranks.wait()[1] == 12, ranks.output()
    (error,) = ranks.events("error", rank=1)
    assert error["exception"] == "OutOfMemory"
    assert "The next start uses micro-batches of 64 samples per rank, and the same batch" in error["message"]
    again = group(2, FLAGS, before=hook, CLOUDTRAIN_INPUT_TEXT=text)
    again.succeed()
    assert [event["step"] for event in again.events("resumed")] == [2], again.output()
    line = "an earlier start ran out of memory: micro-batches of 64 samples per rank, 2 per step; the batch stays 256"
    assert line in again.output()
    check_metrics(again, expected)
