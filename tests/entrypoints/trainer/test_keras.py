"""The task keras-mnist on ranks: its statistics, its export and its accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.entrypoints.groups import TRAINER, ForkServer, Group
from tests.entrypoints.trainer.launching import exported

needs_keras = pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")

TOLERANCE = 0.04
"""Of the accuracy; the largest difference seen with four seeds is 0.017. On two ranks dropout draws
other noise and batch norm sees half of the batch, so it is another training of the same model. With
an accuracy of 0.96 on 360 samples, the difference of two such trainings has a standard deviation of
sqrt(2 x 0.96 x 0.04 / 360) = 0.015 if their errors are independent, and less since most are the
same.
"""

KERAS_HOOKS = "tests.entrypoints.trainer.keras_hooks"
KERAS_FLAGS = "--task keras-mnist --data digits --batch-size 64 --epochs"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """The process whose forks are the ranks; it has imported Keras."""
    with closing(ForkServer(*TRAINER, KERAS_HOOKS)) as made:
        yield made


def trained(server: ForkServer, folder: Path, ranks: int, epochs: int) -> Group:
    """A finished training, which has saved the statistics of each evaluation."""
    run = Group(
        server, folder, ranks, f"{KERAS_FLAGS} {epochs}", before=f"{KERAS_HOOKS}:save_statistics"
    )
    run.succeed()
    return run


@pytest.fixture(scope="module")
def two_ranks(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """A training of two epochs on two ranks."""
    return trained(server, tmp_path_factory.mktemp("keras"), 2, 2)


def evaluations(run: Group) -> list[list[list[Tensor]]]:
    """Batch norm's statistics, by rank and then by evaluation."""
    return [torch.load(run.folder / f"statistics-{rank}.pt", weights_only=True) for rank in (0, 1)]


def metrics(run: Group) -> list[dict[str, float]]:
    """The values of each evaluation."""
    return [event["values"] for event in run.events("metrics")]


def are_equal(some: list[Tensor], expected: list[Tensor]) -> bool:
    return len(some) == len(expected) and all(map(torch.equal, some, expected))


@needs_keras
@pytest.mark.once
def test_batch_norm_statistics_are_equal_on_all_ranks_at_every_evaluation(
    two_ranks: Group,
) -> None:
    first, second = evaluations(two_ranks)
    assert len(first) == len(second) == 2
    assert all(map(are_equal, first, second))
    assert not any(map(are_equal, first, first[1:])), "training changes them"


@needs_keras
@pytest.mark.once
def test_the_export_has_the_statistics_of_the_best_evaluation(two_ranks: Group) -> None:
    run = two_ranks
    losses = [values["val_loss"] for values in metrics(run)]
    best = losses.index(min(losses))
    weights = list(exported(run.folder / "cloudtrain-output/model").values())
    for of_rank in evaluations(run):
        for statistic in of_rank[best]:
            assert sum(torch.equal(statistic, weight) for weight in weights) == 1


@pytest.mark.thorough
@needs_keras
@pytest.mark.once
def test_two_ranks_are_as_accurate_as_one_process(server: ForkServer, tmp_path: Path) -> None:
    expected, actual = (
        metrics(trained(server, tmp_path / str(ranks), ranks, 4))[-1]["val_accuracy"]
        for ranks in (1, 2)
    )
    assert expected > 0.94, "lower where the moving statistics follow too slowly"
    assert actual == pytest.approx(expected, abs=TOLERANCE)
