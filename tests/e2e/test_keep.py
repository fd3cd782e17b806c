"""Results in the working folder are stored with the output if job.yaml says so, and reported
otherwise.

In containers, under every contract: test_docker.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.torchrun

JOB = """name: keeper
entrypoint: train.py
args: {fail: false}
resources: {nodes: 2}
limits: {max_runtime: 1 h}
keep: [out-*/, snapshot.pt]
"""
TRAIN = """
import os, sys
from pathlib import Path
rank = os.environ["RANK"]
Path("out-shakespeare").mkdir()
Path("out-shakespeare/ckpt.pt").write_text(f"of rank {rank}")
Path("last.pt").write_text("forgotten")
if rank == "0":
    Path("snapshot.pt").write_text("only rank 0")
if "--fail" in sys.argv:
    raise ValueError("as asked")
"""
KEPT = {
    "out-shakespeare/ckpt.pt": "of rank 0",
    "snapshot.pt": "only rank 0",
    "node-1/out-shakespeare/ckpt.pt": "of rank 1",
}


@pytest.mark.parametrize(
    ("flags", "code"),
    [((), 0), (("--as", "aws", "--set", "args.fail=true"), 1)],
    ids=["plain", "sagemaker-failed"],
)
def test_what_the_nodes_left_is_in_the_output_and_the_rest_is_told(
    cli: CommandLine, tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    cli.write(job_yaml=JOB, train_py=TRAIN)
    result = cli.run("submit", *flags)
    assert result.code == code, result.err
    assert 'keep: ["out-*/", "snapshot.pt", "last.pt"] in job.yaml' in " ".join(result.err.split())
    fetched = tmp_path / "fetched"
    assert cli.run("fetch", "last", str(fetched)).code == 0
    files = [path for path in (fetched / "output").rglob("*") if path.is_file()]
    assert {
        path.relative_to(fetched / "output").as_posix(): path.read_text() for path in files
    } == KEPT
