"""Run by test_training.py on three ranks: checks of collectives and checkpoints that need a process
group.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.ranks import Ranks, exit_on_uncaught_errors
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Data, Draw, Task, digits
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.loop import Loop


def plain_model() -> nn.Module:
    """Without batch norm and dropout, so that its gradients do not depend on how the batch is
    split.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def loop(ranks: Ranks, folder: Path, task: Task, *argv: str) -> Loop:
    checkpoints = CheckpointStore(folder, keep=3, ranks=ranks)
    return Loop(task, ranks, parse(["--strategy", "ddp", *argv]), checkpoints, Stop())


def save(checkpoints: CheckpointStore, step: int, slots: int = 16) -> None:
    rank = checkpoints.ranks.rank
    tensors = {
        "model.weights": torch.full((4,), float(step)),
        "model.bias": torch.zeros(2),
        "optimizer.weights.own": torch.zeros(slots),
    }
    checkpoints.save(step, 0, tensors, {"step": step}, {"rank": rank})
    checkpoints.finish()


def check_found(checkpoints: CheckpointStore, step: int) -> Path:
    """Check that the newest checkpoint is of that step and can be read completely; returns its
    folder.
    """
    newest = checkpoints.find_newest()
    assert newest is not None
    assert (newest.step, newest.ranks) == (step, 3)
    assert checkpoints.read_state(newest) == ({"step": step}, {"rank": checkpoints.ranks.rank})
    tensors = checkpoints.read_tensors(newest)
    assert torch.equal(tensors["model.weights"], torch.full((4,), float(step)))
    assert {"model.bias", "optimizer.weights.own"} <= set(tensors)
    return newest.folder


class DataWithBadSample:
    """Data with one sample whose loss is NaN while all gradients are finite."""

    def __init__(self, data: Data, sample: int) -> None:
        self.data = data
        self.sample = sample

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = self.data[draw]
        return inputs, labels + 100 * torch.tensor([index == self.sample for index in draw.indices])


def loss_of_bad_sample(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(logits, labels % 100)
    return loss + float("nan") if bool((labels >= 100).any()) else loss


def check_steps_that_are_not_finite(ranks: Ranks, folder: Path, task: Task) -> None:
    """A loss that is NaN on one rank stops all ranks at the same step."""
    probe = loop(ranks, folder / "probe", task, "--batch-size", "33")
    assert isinstance(probe.batches, Batches)
    draws = [draw.indices for draw in probe.batches.draws(epoch=0, skip=0)]
    sample = ranks.all_gather(draws[4][0])[1]  # of rank 1, in the fifth step
    bad_task = replace(
        task,
        model=plain_model,
        loss=loss_of_bad_sample,
        train=DataWithBadSample(task.train, sample),
    )
    stops = loop(ranks, folder / "stops", bad_task, "--batch-size", "33", "--max-steps", "40")
    with pytest.raises(NotFinite, match=r"^step 5: the loss is nan \(rank 1\)$"):
        stops.run()
    ranks.barrier()  # no rank waits in a step
    assert not list((folder / "stops").glob("step-*"))


def check_evaluation(ranks: Ranks, folder: Path, task: Task) -> None:
    """360, 7 and 1 samples on three ranks: the same numbers as in one process."""
    one = loop(ranks, folder, task)
    for samples in (len(task.validation), 7, 1):
        part = digits.build(0).validation
        part.images = part.images[:samples]
        part.labels = part.labels[:samples]
        one.step.task = replace(task, validation=part)
        values = evaluate(one.step, 256, 0, lambda: False)
        assert values is not None
        with torch.no_grad():
            inputs, labels = part[Draw(0, list(range(samples)))]
            outputs = one.step.model(inputs)
        assert values["val_accuracy"] == float((outputs.argmax(1) == labels).sum()) / samples
        assert abs(values["val_loss"] - float(F.cross_entropy(outputs, labels))) < 1e-5


def check_damaged_checkpoints(ranks: Ranks, folder: Path) -> None:
    """A checkpoint that is damaged on one rank is loaded by none; the partial folder of a crash is
    deleted.
    """
    checkpoints = CheckpointStore(folder, keep=3, ranks=ranks)
    for step in (10, 20, 30):
        save(checkpoints, step)
    newest = folder / "step-00000030" / "rank-2.pt"
    if ranks.rank == 2:
        newest.write_bytes(newest.read_bytes()[:-1] + b"x")
        (folder / "step-00000020" / "rank-2.pt").unlink()
        (folder / "step-00000040.partial").mkdir()
    ranks.barrier()
    check_found(CheckpointStore(folder, keep=3, ranks=ranks), 10)
    assert not (folder / "step-00000040.partial").exists()


def check_disks_of_two_nodes(ranks: Ranks, folder: Path) -> None:
    """Rank 2 simulates a second node: each disk holds everything that its ranks need to resume."""
    was = ranks.local_rank, ranks.local_size
    own_folder = folder / ("node-1" if ranks.rank == 2 else "node-0")
    ranks.local_rank = 0 if ranks.rank == 2 else ranks.rank
    ranks.local_size = 1 if ranks.rank == 2 else 2
    checkpoints = CheckpointStore(own_folder, keep=3, ranks=ranks)
    save(checkpoints, 10)
    found = check_found(checkpoints, 10)
    names = {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()}
    if ranks.rank == 2:
        mine = {"rank-2.pt", "weights-2/.own", "weights-2/tensors-0.pt"}
    else:
        mine = {"rank-0.pt", "rank-1.pt"}
        mine |= {f"weights-0/{name}" for name in (".own", "tensors-0.pt", "tensors-1.pt")}
        first = torch.load(found / "weights-0" / "tensors-0.pt")
        assert list(first) == ["optimizer.weights.own"], "the larger half"
    assert names == {"manifest.json", "shared.json"} | mine

    # A user's optimizer may keep state on some ranks only: all of the first rank's is written.
    save(checkpoints, 20, slots=16 if ranks.rank == 0 else 0)
    unlike = check_found(checkpoints, 20) / f"weights-{2 if ranks.rank == 2 else 0}/tensors-0.pt"
    written = torch.load(unlike)["optimizer.weights.own"]
    assert len(written) == (0 if ranks.rank == 2 else 16)
    ranks.local_rank, ranks.local_size = was


def main() -> None:
    folder = Path.cwd()
    ranks = Ranks()
    ranks.init_process_group()
    exit_on_uncaught_errors()
    torch.set_num_threads(1)
    task = digits.build(0)
    check_evaluation(ranks, folder / "b", task)
    check_steps_that_are_not_finite(ranks, folder / "e", task)
    check_damaged_checkpoints(ranks, folder / "c")
    check_disks_of_two_nodes(ranks, folder / "d")
    os.write(1, f"all checks passed on rank {ranks.rank}\n".encode())
    ranks.exit()
