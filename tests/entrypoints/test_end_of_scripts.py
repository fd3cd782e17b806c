"""The scripts that we give away free their DDP model before its process group.

The other way round the model's reducer destroys the group while it holds Python's lock, and joins a thread of gloo that
may wait for that lock: seen once with torch 2.13, as a rank that never ended (~Reducer in torch/csrc/distributed/c10d).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tools import ROOT
from tests.support.limits import HANG_SECONDS

LOOK = """
import gc, runpy, sys
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

destroy = dist.destroy_process_group
def look_and_destroy():
    print("models left:", sum(isinstance(each, DistributedDataParallel) for each in gc.get_objects()))
    destroy()

dist.destroy_process_group = look_and_destroy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("script", "flag"),
    [("cloudtrain/cli/starter/train.py", "--epochs=1"), ("examples/existing-script/classify.py", "--steps=2")],
    ids=["starter", "existing-script"],
)
def test_the_model_is_gone_before_its_process_group(script: str, flag: str, tmp_path: Path) -> None:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    argv = [sys.executable, "-c", LOOK, str(ROOT / script), flag]
    done = subprocess.run(
        argv, cwd=tmp_path, env=os.environ | alone, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "models left: 0" in done.stdout
