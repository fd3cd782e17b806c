"""Results in the working folder are stored with the output if job.yaml says so, and reported
otherwise.

In containers, under every contract: test_docker.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.tools import ROOT
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
    message = (
        "train.py left last.pt (9 B) in its working folder, which is not kept: keep: ['out-*/',"
        " snapshot.pt, last.pt]"
    )
    assert message in " ".join(result.err.split())
    fetched = tmp_path / "fetched"
    assert cli.run("fetch", "last", str(fetched)).code == 0
    files = [path for path in (fetched / "output").rglob("*") if path.is_file()]
    assert {
        path.relative_to(fetched / "output").as_posix(): path.read_text() for path in files
    } == KEPT


def test_a_plan_says_what_is_kept_and_warns_of_a_pattern_that_means_the_source(
    cli: CommandLine,
) -> None:
    cli.write(job_yaml=JOB, train_py=TRAIN, **{"out-old__ckpt_pt": "of another time"})
    plan = cli.run("plan")
    assert "keeps    out-*/, snapshot.pt of the working folder, with the output" in plan.out
    assert "job.yaml:6:8: keep[0]: 'out-*/' matches out-old/ckpt.pt of the source" in " ".join(
        plan.out.split()
    )


def test_the_example_of_a_script_as_it_is_brings_back_what_it_wrote_beside_itself(
    cli: CommandLine, tmp_path: Path
) -> None:
    example = ROOT / "examples/existing-script"
    cli.write(
        job_yaml=(example / "job.yaml").read_text(),
        classify_py=(example / "classify.py").read_text(),
    )
    result = cli.run("submit", "--set", "args.steps=50")
    assert result.code == 0, result.err
    assert cli.run("fetch", "last", str(tmp_path / "fetched")).code == 0
    fetched = tmp_path / "fetched" / "output" / "out"
    assert {path.name for path in fetched.iterdir()} == {"losses.csv", "model.pt"}
    assert [
        line.partition(",")[0] for line in (fetched / "losses.csv").read_text().splitlines()
    ] == [
        "step",
        "50",
    ]
