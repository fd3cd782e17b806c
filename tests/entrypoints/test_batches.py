"""Samples of each rank, in training and in an evaluation, and the number of loading processes."""

from __future__ import annotations

import pytest

from cloudtrain_trainer import tasks
from cloudtrain_trainer.data.batches import Batches, evaluation_draws, loader_processes
from cloudtrain_trainer.rules import Refused


def batches(rank: int = 0, ranks: int = 1, accumulate: int = 1, batch_size: int = 64) -> Batches:
    data = tasks.build("digits", seed=0).train
    return Batches(data, 0, batch_size, accumulate, rank, ranks, workers=0, pin_memory=False)


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (3, 1), (2, 3), (5, 2)])
def test_the_global_batches_are_the_same_on_any_number_of_ranks(
    ranks: int, accumulate: int
) -> None:
    one_rank = [draw.indices for draw in batches().draws(epoch=1, skip=128)]
    by_rank = [
        list(batches(rank, ranks, accumulate).draws(epoch=1, skip=128)) for rank in range(ranks)
    ]
    for step, batch in enumerate(one_rank):
        shares = [
            mine[step * accumulate + number].indices
            for mine in by_rank
            for number in range(accumulate)
        ]
        assert [i for share in shares for i in share] == batch
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_epoch_has_another_order_and_uses_no_sample_twice() -> None:
    first, second = ([i for d in batches().draws(e, 0) for i in d.indices] for e in (0, 1))
    assert first != second
    assert len(set(first)) == len(first) == batches().samples_per_epoch == 22 * 64


@pytest.mark.parametrize("samples", [1, 7, 256, 360, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_evaluation_counts_each_sample_once_with_equally_many_batches_per_rank(
    samples: int, ranks: int
) -> None:
    draws = [list(evaluation_draws(samples, rank, ranks)) for rank in range(ranks)]
    counted = [i for mine in draws for draw, count in mine for i in draw.indices[:count]]
    assert sorted(counted) == list(range(samples))
    assert len({len(mine) for mine in draws}) == 1
    assert all(draw.indices for mine in draws for draw, _ in mine)


@pytest.mark.parametrize(
    ("ranks", "accumulate", "batch_size", "hint"),
    [(4, 2, 7, "use at least 8"), (1, 1, 1438, "use 1437 or less")],
)
def test_a_batch_that_cannot_be_split_over_the_ranks_is_refused(
    ranks: int, accumulate: int, batch_size: int, hint: str
) -> None:
    with pytest.raises(Refused, match=hint):
        batches(0, ranks, accumulate, batch_size)


@pytest.mark.parametrize(
    ("requested", "task", "cores", "ranks", "expected"),
    [
        (3, 0, 8, 2, 3),
        (None, 0, 8, 2, 0),
        (None, None, 8, 2, 3),
        (None, None, 2, 2, 0),
        (None, None, 96, 1, 16),
    ],
)
def test_loader_processes_use_the_idle_cores_by_default(
    requested: int | None, task: int | None, cores: int, ranks: int, expected: int
) -> None:
    assert loader_processes(requested, task, cores, ranks) == expected
