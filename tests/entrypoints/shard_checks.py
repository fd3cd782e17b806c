"""Programs of ranks, run by test_strategies.py: ranks that share a model make and hold only their parts of it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from cloudtrain_trainer.models.deferred import MIN_NUMBERS, Recording
from cloudtrain_trainer.ranks import Ranks
from tests.entrypoints.loss_curves import begin, begin_in_one_process, small_task, task_flags

SPLIT = {
    2: ["fsdp", "tp", "pipeline --schedule interleaved"],
    4: ["hsdp --shard 2", "hybrid --tensor 2", "hybrid --stages 2"],
}
"""Number of ranks -> strategies in which ranks share a model."""


def check_initial_weights(ranks: Ranks, folder: Path) -> None:
    """Ranks that share a model make their own parts of it, with the very weights of one process, or with given ones."""
    task, given = small_task("gpt"), folder / "given.safetensors"
    expected = begin_in_one_process(task, task_flags("gpt")).step.model.state_dict()
    if ranks.rank == 0:
        save_file({name: value + 1 for name, value in expected.items()}, given)
    ranks.barrier()
    for flags in SPLIT[ranks.size]:
        argv = [*task_flags("gpt"), "--strategy", *flags.split()]
        for more, added in (([], 0), (["--weights", str(given)], 1)):
            with patch.object(Recording, "make", autospec=True, side_effect=Recording.make) as make:
                loop = begin(task, [*argv, *more], ranks)
            large = [p for p in loop.step.model.parameters() if p.numel() >= MIN_NUMBERS]
            assert large
            assert make.call_count == (0 if added else len(large)), f"{flags}: {make.call_count} made later"
            found = loop.strategy.full_state_dict(loop.step.model)
            if ranks.rank == 0:
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[name], value + added) for name, value in expected.items()), flags
