"""`submit --timings`: what the steps of an ordinary program wait for."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine

PROGRAM = """\
import time

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, number):
        time.sleep(0.01)
        return torch.ones(1000)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1000, 300))
for _ in range(2):
    for batch in DataLoader(Slow(), batch_size=4, num_workers=WORKERS):
        model(batch).sum().backward()
    with torch.no_grad():
        for batch in DataLoader(Slow(), batch_size=40):
            model.module(batch)
"""

JOB = "name: ordinary\nentrypoint: train.py\nresources: {processes: 2}\n"


@pytest.mark.parametrize(("warm", "workers"), [("true", 0), ("false", 1)])
def test_an_ordinary_program_is_measured(cli: CommandLine, warm: str, workers: int) -> None:
    cli.write(job_yaml=JOB, train_py=PROGRAM.replace("WORKERS", str(workers)))
    result = cli.run("submit", "--run-id", "t-1", "--timings", "--set", f"launch.warm={warm}")
    assert result.code == 0, result.err

    slowness = cli.json("diagnose", "t-1")["slowness"]
    assert slowness["shares"]["data"] > 0.2
    assert slowness["shares"]["communication"] > 0
    assert slowness["shares"]["evaluation"] > 0
    assert "not measured" not in slowness["sentence"]


def test_patch_that_fails_does_not_fail_the_rank(cli: CommandLine) -> None:
    loader = "import torch.utils.data.dataloader as module\n"
    program = (
        "import cloudtrain_job\n"
        "def fail(*_): raise RuntimeError('broken patch')\n"
        "cloudtrain_job.end_step = cloudtrain_job.watch = fail\n"
        f"{loader}assert len(list(module.DataLoader(range(8)))) == 8\n"
    )
    cli.write(job_yaml="name: ordinary\nentrypoint: train.py\n", train_py=program)
    result = cli.run("submit", "--run-id", "t-2", "--timings")
    assert result.code == 0, result.err
