"""A program whose DDP model outlives its process group ends well, though torch 2.13 may hang when
the model goes.

The model's reducer destroys the group while it holds Python's lock, and joins a thread of gloo that
may wait for that lock (~Reducer in torch/csrc/distributed/c10d). A rank keeps the group; scripts
that we give away free the model first.
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_launcher import shutdown
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.ranks import run_rank
from tests.repo.tools import ROOT
from tests.support.waiting import HANG_SECONDS


def look() -> None:
    """Run the script that the command line names, and count models when its group is destroyed."""
    destroy = dist.destroy_process_group

    def look_and_destroy() -> None:
        left = sum(isinstance(each, DistributedDataParallel) for each in gc.get_objects())
        print("models left:", left, flush=True)
        destroy()

    setattr(dist, "destroy_process_group", look_and_destroy)  # noqa: B010
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


@pytest.mark.parametrize(
    ("script", "flag"),
    [
        ("cloudtrain/cli/starter/train.py", "--epochs=1"),
        ("examples/existing-script/classify.py", "--steps=2"),
    ],
    ids=["starter", "existing-script"],
)
def test_the_model_is_gone_before_its_process_group(
    script: str, flag: str, group: StartGroup
) -> None:
    rank = group(1, f"{ROOT / script} {flag}", program=f"{__name__}:look")
    assert rank.wait() == [0], rank.output()
    assert "models left: 0" in rank.output()


OUTLIVES = """
import gc
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    dist.destroy_process_group()

def threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("pt_gloo") for name in names)

from cloudtrain_launcher import shutdown
shutdown.keep_destroyed_groups()  # as in a forked rank, which begins with torch
train()
gc.collect()
print(threads() > 0, "is kept")
"""


@pytest.mark.linux("threads are counted in /proc")
def test_a_group_does_not_end_with_the_model_that_outlives_it(tmp_path: Path) -> None:
    rank = run_rank(tmp_path, OUTLIVES)
    assert "True is kept" in rank.text, rank.output


def test_rank_stuck_at_its_end_exits_and_shows_the_place() -> None:
    program = (
        "import ctypes, sys\nfrom cloudtrain_launcher import shutdown\n"
        "sys.setswitchinterval(1000)  # no other thread of Python's gets the lock meanwhile\n"
        "shutdown.LOCKED_SECONDS = 0.2\nshutdown.Watchdog(7, seconds=0.1)\n"
        "ctypes.PyDLL(None).sleep(600)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(shutdown.__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert 'File "<string>", line ' in process.stderr
