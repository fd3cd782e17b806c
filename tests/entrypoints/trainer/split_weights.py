"""Programs of ranks, run by test_split_models.py: ranks that share a model make and hold only their
parts of it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.strategies import full_tensor
from cloudtrain_trainer.training.run import Position
from tests.entrypoints.trainer.ddp_checks import shared_process_group
from tests.entrypoints.trainer.loss_curves import (
    NORM_TOLERANCE,
    STEPS,
    TOLERANCE,
    begin_in_one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)
from tests.entrypoints.trainer.split_tasks import begin

SPLIT = {
    2: ["fsdp", "tp", "pipeline"],
    4: ["hsdp --shard 2", "hybrid --tensor 2", "hybrid --stages 2"],
}
"""Number of ranks -> strategies that share a model among ranks."""


def check_initial_weights(ranks: Ranks, folder: Path) -> None:
    """Ranks that share a model make their own parts of it, with the weights of one process."""
    task = small_task("gpt")
    expected = begin_in_one_process(task, task_flags("gpt")).step.model.state_dict()
    for flags in SPLIT[ranks.size]:
        loop = begin(task, [*task_flags("gpt"), "--strategy", *flags.split()], ranks)
        full_state = loop.strategy.full_state_dict(loop.step.model)
        if ranks.rank == 0:
            assert full_state.keys() == expected.keys()
            assert all(torch.equal(full_state[name], value) for name, value in expected.items()), (
                flags
            )


class Adapted(nn.Module):
    """A frozen linear layer and a trained one of low rank (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.up(self.down(x))
        return out


def adapted_gpt() -> nn.Module:
    """The tiny gpt, frozen, with an adapter in each layer: embedding and head have nothing to
    train.
    """
    model = small_task("gpt").model().requires_grad_(False)
    for module in list(model.modules()):
        if isinstance(getattr(module, "out", None), nn.Linear):
            module.out = Adapted(module.out)  # type: ignore[arg-type]
    return model


def check_frozen_weights(ranks: Ranks) -> None:
    """FSDP trains adapters in layers that are frozen otherwise, with the losses of one process; the
    rest stays.
    """
    task = replace(small_task("gpt"), model=adapted_gpt)
    argv = [*task_flags("gpt"), "--clip-norm", "0.5"]
    alone = begin_in_one_process(task, argv)
    before = {name: value.clone() for name, value in alone.step.model.state_dict().items()}
    expected = train(alone)
    after = alone.step.model.state_dict()
    for more in ("--recompute blocks", "--accumulate 2"):
        loop = begin(task, [*argv, "--strategy", "fsdp", *more.split()], ranks)
        losses = train(loop)
        assert relative_difference(losses.losses, expected.losses) < TOLERANCE, (
            f"{more}: {losses}, not {expected}"
        )
        assert relative_difference(losses.norms, expected.norms) < NORM_TOLERANCE, (
            f"{more}: {losses}, not {expected}"
        )
        for name, parameter in loop.step.model.named_parameters():
            trained = name.endswith(("down.weight", "up.weight")) and "out." in name
            whole = full_tensor(parameter)
            assert parameter.requires_grad == trained, name
            assert torch.equal(whole, before[name]) != trained, name
            torch.testing.assert_close(whole, after[name], rtol=1e-3, atol=1e-5)


def check_resume_without_frozen_weights(ranks: Ranks) -> None:
    """FSDP saves trained shards alone; other strategies resume from them, on the same base only."""
    task = replace(small_task("gpt"), model=adapted_gpt)
    other_task = replace(small_task("gpt"), model=lambda: other_base(adapted_gpt()))
    folder = Path(ranks.all_gather(tempfile.mkdtemp())[0])
    saved = begin(task, [*task_flags("gpt"), "--strategy", "fsdp"], ranks, folder)
    train(saved)
    saved.position = Position(STEPS, 0, 32 * STEPS)
    saved.checkpointer.save(last=True)
    expected = {name: full_tensor(p) for name, p in saved.step.model.named_parameters()}
    index = FileSystemReader(folder / f"step-{STEPS:08d}" / "weights-0").read_metadata()
    weights = [name for name in index.state_dict_metadata if name.startswith("model.")]
    assert weights, index
    assert all(name.endswith(("down.weight", "up.weight")) for name in weights), weights

    for strategy in ("ddp", "fsdp"):
        argv = [*task_flags("gpt"), "--strategy", strategy]
        resumed = begin(task, argv, ranks, folder)
        resumed.resume()
        for name, parameter in resumed.step.model.named_parameters():
            assert torch.equal(full_tensor(parameter), expected[name]), f"{strategy}: {name}"
        with pytest.raises(Refused, match="other ones now"):
            begin(other_task, argv, ranks, folder).resume()


def check_averages_of_shards(ranks: Ranks) -> None:
    """Each rank averages its shards; an evaluation of the averages leaves training as it is."""
    task = small_task("gpt")
    argv = [*task_flags("gpt"), "--ema", "0.9"]
    loops = begin_in_one_process(task, argv), begin(task, [*argv, "--strategy", "fsdp"], ranks)
    curves = []
    for loop in loops:
        first = train(loop)
        evaluation = loop._evaluate()
        assert evaluation is not None
        curves.append([*first.losses, evaluation["val_loss"], *train(loop).losses])
    assert relative_difference(*reversed(curves)) < TOLERANCE, curves
    assert curves[0][3] != curves[0][5], "the averages were evaluated, not the weights"
    alone, sharded = (loop.step.averages for loop in loops)
    assert alone is not None
    assert sharded is not None
    for name, average in alone.tensors.items():
        torch.testing.assert_close(full_tensor(sharded.tensors[name]), average)


def other_base(model: nn.Module) -> nn.Module:
    """Change one number of one frozen weight."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    with torch.no_grad():
        frozen[-1].flatten()[-1] += 1
    return model


def check_shards_on_two_disks(ranks: Ranks, folder: Path) -> None:
    """A model whose shards are on two disks is found only in a folder with all of them."""
    was = ranks.local_rank, ranks.local_size
    ranks.local_rank = 0 if ranks.rank == 2 else ranks.rank
    ranks.local_size = 1 if ranks.rank == 2 else 2
    own_folder = folder / ("node-1" if ranks.rank == 2 else "node-0")
    combined = folder / "combined"
    mesh = init_device_mesh("cpu", (3,))
    weights = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    checkpoints = CheckpointStore(own_folder, keep=3, ranks=ranks, shard_group_size=3)
    checkpoints.save(10, 0, {"weights": weights}, {"step": 10}, {"rank": ranks.rank})
    checkpoints.finish()
    with contextlib.suppress(Refused):
        checkpoints.find_newest()
        raise AssertionError("a part was loaded as a complete model")
    shutil.copytree(own_folder, combined, dirs_exist_ok=True)
    ranks.barrier()
    newest = CheckpointStore(combined, keep=3, ranks=ranks, shard_group_size=3).find_newest()
    assert newest is not None
    whole = {"weights": torch.zeros(7)}
    load(whole, storage_reader=FileSystemReader(newest.folder / newest.weights), no_dist=True)
    assert torch.equal(whole["weights"], torch.arange(7.0))
    ranks.local_rank, ranks.local_size = was


def main() -> None:
    """Make the checks that need three ranks."""
    with shared_process_group() as ranks:
        check_shards_on_two_disks(ranks, Path.cwd())
