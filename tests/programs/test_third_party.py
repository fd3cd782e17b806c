"""Programs written for other launchers train one model here: on two processes, and on two nodes of
one each.

Their libraries are in a separate environment: `make programs` makes it and runs this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pages import ROOT, blocks
from tests.support.command_line import CommandLine

PYTHON = os.environ.get("CLOUDTRAIN_TEST_PROGRAMS", "")
"""The Python of that environment."""

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.skipif(
        not PYTHON, reason="programs of other libraries: `make programs` runs these"
    ),
]

FOLDER = Path(__file__).parent / "third_party"
GUIDE = blocks(ROOT / "docs" / "guides" / "other-libraries.md")
HERE = ("--gpus", "0", "--set", "dependencies=none")
"""Changes of the guide's jobs for this machine, whose environment has the packages."""
LAYOUTS = {
    "1 node of 2": ("--nodes", "1", "--processes", "2"),
    "2 nodes of 1": ("--nodes", "2", "--processes", "1"),
}


@dataclass(frozen=True)
class Program:
    """A program, its arguments, and the files that it leaves in its working folder.

    The job of a program in the guide is the guide's.
    """

    name: str
    args: str = "[]"
    keep: str = "[]"
    leaves: str = ""
    """A file that is kept, below the run's folder."""

    @property
    def job(self) -> str:
        for block in GUIDE:
            if f"entrypoint: {self.name}\n" in block.text:
                return block.text
        return f"name: program\nentrypoint: {self.name}\nargs: {self.args}\nkeep: {self.keep}\n"


PROGRAMS = [
    Program("ddp_tutorial.py", "[4, 2]", "[snapshot.pt]", "output/snapshot.pt"),
    Program("fsdp2.py", "['${outputs.checkpoints}/step-5']", leaves="checkpoints/step-5/.metadata"),
    Program(
        "char_gpt.py", "[--out_dir=out-char, --max_iters=10]", "[out-*/]", "output/out-char/ckpt.pt"
    ),
    Program(
        "lightning_trainer.py",
        leaves="output/lightning_logs/version_0/hparams.yaml",
    ),
    Program("lightning_fabric.py", keep="[fabric.ckpt]", leaves="output/fabric.ckpt"),
    Program(
        "accelerate_loop.py",
        leaves="output/accelerate-state/model.safetensors",
    ),
    Program(
        "transformers_trainer.py",
        leaves="output/trainer-output/checkpoint-8",
    ),
]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[CommandLine]:
    """Provide the command line, in its own job folder, with the environment of these programs."""
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    line = CommandLine(
        tmp_path / "workspace", env={"CLOUDTRAIN_PYTHON": str(Path(PYTHON).absolute()), **offline}
    )
    yield line
    line.close()


def world_sizes(cli: CommandLine) -> list[int]:
    """The size of the group that each rank of the last run was in."""
    run = cli.json("status", "last")["run"]
    return [event["group"] for event in cli.events(run) if event["type"] == "rank_ended"]


def losses(cli: CommandLine, program: Program) -> list[float]:
    """Train under each layout as one world; the losses at the end."""
    metrics = []
    for layout, flags in LAYOUTS.items():
        result = cli.run("submit", *flags, *HERE)
        assert result.code == 0, f"{layout}: {result.err}{cli.run('logs', 'last').out[-3000:]}"
        status = cli.json("status", "last")
        assert status["warnings"] == [], layout
        assert world_sizes(cli) == [2, 2], layout
        assert (cli.run_folder(status["run"]) / program.leaves).exists(), layout
        final = re.findall(r"final loss ([0-9.]+)", cli.run("logs", "last").out)
        assert len(final) == 1, f"{layout}: one rank prints it"
        metrics.append(float(final[0]))
    return metrics


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_trains_one_model_on_two_processes_and_on_two_nodes(
    programs: CommandLine, program: Program
) -> None:
    text = (FOLDER / program.name).read_text()
    programs.write(job_yaml=program.job, **{program.name.replace(".", "_"): text})
    on_one_node, on_two = losses(programs, program)
    assert on_two == pytest.approx(on_one_node, rel=1e-4)


# The first compares files of all ranks in one working folder, which two nodes have not.
@pytest.mark.parametrize(("name", "nodes"), [("test_script", 1), ("test_sync", 2)])
def test_what_accelerate_tests_itself_with_passes(
    programs: CommandLine, name: str, nodes: int
) -> None:
    module = f"-m accelerate.test_utils.scripts.{name}"
    resources = f"{{nodes: {nodes}, processes: {2 // nodes}}}"
    programs.write(job_yaml=f"name: own\nentrypoint: {module}\nresources: {resources}\n")
    result = programs.run("submit")
    assert result.code == 0, result.err + programs.run("logs", "last").out[-3000:]
    assert world_sizes(programs) == [2, 2]
