"""A program that starts its ranks itself, as the Keras guide to distributed training does, under
one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain_launcher.host import free_port
from tests.entrypoints.test_launcher import finish, start

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist

def work(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"rank {rank} of its own: {total.item():.0f}\\n".encode())
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, args=(2,), nprocs=2, join=True, start_method="fork")
    dist.init_process_group("gloo")
    print("and one of", dist.get_world_size())
"""


@pytest.mark.torchrun
def test_ranks_of_its_own_meet_and_so_does_the_process_itself(tmp_path: Path) -> None:
    process = start(tmp_path, SCRIPT, argv=[str(free_port())])
    text = finish(process)
    assert process.returncode == 0, text
    assert "[rank 0] rank 0 of its own: 2" in text
    assert "[rank 0] rank 1 of its own: 2" in text
    assert "[rank 0] and one of 1" in text


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("use", "is_warned"),
    [
        ("", True),
        ("dist.barrier(dist.new_group())", False),
    ],
    ids=["unused", "a collective of another group"],
)
def test_ranks_that_exchange_nothing_in_their_group_end_with_a_warning(
    use: str, is_warned: bool, tmp_path: Path
) -> None:
    script = f"import torch\nimport torch.distributed as dist\ndist.init_process_group()\n{use}\n"
    process = start(tmp_path, script, processes=2)
    text = finish(process)
    assert process.returncode == 0, text
    assert ("warning: the processes of this job never formed one" in text) == is_warned, text
