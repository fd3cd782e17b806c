"""The trainer as users start it: real torchrun processes, few of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.limits import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"
TRAIN = ENTRYPOINTS / "train.py"


class Launch:
    """A command in a process group of its own, which is killed when the deadline expires."""

    def __init__(
        self, folder: Path, *argv: str, deadline: float = HANG_SECONDS, env: dict[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CLOUDTRAIN_", "PET_", "TORCHELASTIC_"))}
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=folder,
            env=clean | {"OMP_NUM_THREADS": "1", "CLOUDTRAIN_RESULT_FILE": "result.json"} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._watch = threading.Timer(deadline, self.kill)
        self._watch.start()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def events(self) -> Iterator[dict[str, Any]]:
        """Events as they come, to the end of the output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("::cloudtrain:: "):
                yield json.loads(line.removeprefix("::cloudtrain:: "))

    def finish(self) -> list[dict[str, Any]]:
        """The rest of the events; the process has ended."""
        events = list(self.events())
        self.process.wait()
        self._watch.cancel()
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return events

    def fingerprints(self) -> set[str]:
        return set(re.findall(r"^parameters sha256 ([0-9a-f]{16}) ", "".join(self.lines), re.MULTILINE))


def torchrun(folder: Path, processes: int, *argv: str | Path, **env: str) -> Launch:
    run = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "--monitor-interval=0.1",
    ]
    return Launch(folder, *run, *map(str, argv), env=env)


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, in the format that the installed packages allow."""
    if find_spec("safetensors") is None:
        weights: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)
    else:
        weights = import_module("safetensors.torch").load_file(folder / "model.safetensors")
    assert len(list(folder.iterdir())) == 1
    return weights


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


@pytest.mark.torchrun
def test_two_ranks_learn_the_digits_and_end_with_equal_parameters(tmp_path: Path) -> None:
    launch = torchrun(tmp_path, 2, TRAIN)
    events = launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)

    metrics = only(events, "metrics")
    assert [(m["step"], m["epoch"]) for m in metrics] == [(44, 1), (88, 2), (132, 3)]
    assert metrics[-1]["values"]["val_accuracy"] >= 0.96
    assert metrics[-1]["values"]["loss"] < metrics[0]["values"]["loss"]
    progress = only(events, "progress")
    assert progress[0]["step"] == 1
    assert (progress[-1]["step"], progress[-1]["steps"], progress[-1]["epochs"]) == (132, 132, 3)
    assert {event["rank"] for event in events} == {0}

    assert len(re.findall("parameters sha256", "".join(launch.lines))) == 2
    (result,) = only(events, "result")
    assert launch.fingerprints() == {result["parameters_sha256"]}
    assert json.loads((tmp_path / "result.json").read_text()) == {"outcome": "succeeded", "step": 132}
    weights = exported(tmp_path / "cloudtrain-output/model")
    assert weights["0.weight"].shape == (32, 1, 3, 3)
    numbers = json.loads((tmp_path / "cloudtrain-output/output/metrics.json").read_text())
    assert numbers["val_accuracy"] == metrics[-1]["values"]["val_accuracy"]


@pytest.mark.torchrun
def test_a_stopped_run_resumes_bit_identically(tmp_path: Path) -> None:
    """With its control: a resume without the generators must differ, or the equality proves nothing."""
    argv = (TRAIN, "--epochs", "5")
    stopped = torchrun(tmp_path / "stopped", 2, *argv)
    next(event for event in stopped.events() if event["type"] == "progress")
    stopped.process.terminate()
    events = stopped.finish()
    (checkpoint,), (result,) = only(events, "checkpoint"), only(events, "result")
    assert result["outcome"] == "stopped"
    assert 0 < checkpoint["step"] == result["step"] < 5 * 44
    told = json.loads((tmp_path / "stopped/result.json").read_text())
    assert told == {"outcome": "stopped", "step": result["step"]}
    assert "parameters_sha256" not in result, "a stop leaves no time to bring a model together"
    assert not stopped.fingerprints()
    assert not list((tmp_path / "stopped/cloudtrain-output").rglob("model.*"))
    folder = tmp_path / "stopped" / checkpoint["path"]
    assert {p.name for p in folder.iterdir()} == {"manifest.json", "shared.json", "rank-0.pt", "rank-1.pt", "weights-0"}

    control = tmp_path / "control" / checkpoint["path"]
    shutil.copytree(folder, control)
    reseed_generators(control)
    whole = torchrun(tmp_path / "whole", 2, *argv)
    resumed = torchrun(tmp_path / "stopped", 2, *argv)
    resumed_events = resumed.finish()
    whole.finish()
    assert [e["step"] for e in only(resumed_events, "resumed")] == [result["step"]]
    assert len(whole.fingerprints()) == 1
    assert resumed.fingerprints() == whole.fingerprints()

    other = torchrun(tmp_path / "control", 2, *argv)
    assert only(other.finish(), "resumed")
    assert len(other.fingerprints()) == 1
    assert other.fingerprints() != whole.fingerprints()


def test_a_run_that_starts_anew_goes_on_when_its_platform_starts_it_again(tmp_path: Path) -> None:
    """A managed restart is a new container: the name of the run alone tells it from a new run."""

    def resumed(steps: int, run: str) -> list[int]:
        argv = (str(TRAIN), "--no-resume", "--max-steps", str(steps))
        launch = Launch(tmp_path, *argv, env={"CLOUDTRAIN_RUN_ID": run})
        events = launch.finish()
        assert [event["step"] for event in only(events, "result")] == [steps], "".join(launch.lines)
        return [event["step"] for event in only(events, "resumed")]

    assert resumed(2, "digits-1") == []
    assert resumed(3, "digits-1") == [2]
    assert resumed(2, "digits-2") == []


def test_the_best_of_an_earlier_run_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    """It may lie there: a platform brings back what was set aside. Nothing better has come, for no loss is a number."""
    folder = tmp_path / "cloudtrain-output/checkpoints"
    folder.mkdir(parents=True)
    (folder / "best.safetensors").write_text("of another run")
    flags = ("--max-steps", "1", "--lr", "1e30", "--warm-up", "0", "--on-nan", "skip")
    launch = Launch(tmp_path, str(TRAIN), *flags)
    launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)
    assert exported(tmp_path / "cloudtrain-output/model")["0.weight"].shape == (32, 1, 3, 3)
    numbers = json.loads((tmp_path / "cloudtrain-output/output/metrics.json").read_text(), parse_constant=pytest.fail)
    assert (numbers["outcome"], numbers["val_loss"]) == ("succeeded", None)


def test_a_training_whose_loss_is_no_number_fails_with_the_step_and_keeps_what_was_good(tmp_path: Path) -> None:
    """Warming up, the first steps are small; at 1e30 the weights are soon beyond all numbers."""
    flags = ("--lr", "1e30", "--warm-up", "0", "--checkpoint-every-steps", "1")
    launch = Launch(tmp_path, str(TRAIN), *flags)
    events = launch.finish()
    assert launch.process.returncode == 33, "".join(launch.lines)
    (error,) = only(events, "error")
    assert error["exception"] == "NotFinite"
    found = re.match(
        r"step (\d+): the loss is nan. Training stops: the checkpoint of step (\d+) is kept", error["message"]
    )
    assert found, error["message"]
    assert int(found[2]) == int(found[1]) - 1
    assert "try a lower --lr" in error["message"]
    output = tmp_path / "cloudtrain-output"
    assert not (output / "model").exists()
    assert not (tmp_path / "result.json").exists()
    numbers = json.loads((output / "output/metrics.json").read_text(), parse_constant=pytest.fail)
    assert (numbers["outcome"], numbers["why"]) == ("failed", f"step {found[1]}: the loss is nan")


def reseed_generators(folder: Path) -> None:
    """Put fresh generators into a checkpoint, and the checksums that belong to it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for rank in (0, 1):
        path = folder / f"rank-{rank}.pt"
        own = torch.load(path, weights_only=True)
        own["generators"]["torch"] = torch.Generator().manual_seed(99 + rank).get_state()
        torch.save(own, path)
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.torchrun
def test_three_ranks_resume_bit_identically_then_two_go_on_from_them(tmp_path: Path) -> None:
    """From three ranks on, also the order in which DDP adds gradients must come back."""
    argv = (TRAIN, "--epochs", "1", "--checkpoint-every-steps", "20", "--keep", "9")
    whole = torchrun(tmp_path / "whole", 3, *argv)
    assert [e["step"] for e in only(whole.finish(), "checkpoint")] == [20, 40, 44]
    checkpoints = "cloudtrain-output/checkpoints/step-00000020"
    for name in ("resumed", "fewer"):
        shutil.copytree(tmp_path / "whole" / checkpoints, tmp_path / name / checkpoints)
    resumed = torchrun(tmp_path / "resumed", 3, *argv)
    assert [e["step"] for e in only(resumed.finish(), "resumed")] == [20]
    assert len(whole.fingerprints()) == 1
    assert resumed.fingerprints() == whole.fingerprints()

    fewer = torchrun(tmp_path / "fewer", 2, *argv)
    assert [e["step"] for e in only(fewer.finish(), "result")] == [44]
    assert "resumed on 2 ranks from a checkpoint of 3 (ddp, now ddp)" in "".join(fewer.lines)
    assert len(fewer.fingerprints()) == 1


@pytest.mark.torchrun
def test_what_needs_a_group_of_three(tmp_path: Path) -> None:
    launch = torchrun(tmp_path, 3, Path(__file__).with_name("group_checks.py"), tmp_path)
    launch.finish()
    output = "".join(launch.lines)
    assert launch.process.returncode == 0, output
    assert len(re.findall(r"^all checks passed on rank [012]$", output, re.MULTILINE)) == 3
    assert output.count("is not complete (rank 2: rank-2.pt does not have the checksum") == 1
    assert output.count("is not complete (rank 2: FileNotFoundError") == 1


def test_a_refusal_is_one_line_from_rank_0_and_exit_code_2(tmp_path: Path) -> None:
    ranks = [
        Launch(tmp_path, str(TRAIN), "--strategy", "single", env={"RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.finish()
    assert [rank.process.returncode for rank in ranks] == [2, 2]
    spoken = [[line for line in rank.lines if not line.startswith("::cloudtrain:: ")] for rank in ranks]
    assert len(spoken[0]) == 1
    assert spoken[0][0].startswith("train.py: error: --strategy single trains in one process; each of 2")
    assert "use --strategy ddp" in spoken[0][0]
    assert spoken[1] == []
