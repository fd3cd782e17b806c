"""Resuming: bit-identical with the same strategy and ranks, and from the same weights with any other."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.entrypoints.groups import Group, StartGroup
from tests.entrypoints.launching import TRAIN, only, torchrun

CHECKPOINTS = Path("cloudtrain-output/checkpoints")


def copy_checkpoints(source: Group, target: Path) -> None:
    """The checkpoints of one run as those of another folder."""
    shutil.copytree(source.folder / CHECKPOINTS, target / CHECKPOINTS)


@pytest.mark.torchrun
def test_a_stopped_run_resumes_bit_identically(tmp_path: Path, group: StartGroup) -> None:
    """With a control: a resume with other generators must end with other weights, or the equality proves nothing."""
    stopped = torchrun(tmp_path / "stopped", 2, TRAIN, "--epochs", "5")
    next(event for event in stopped.events() if event["type"] == "progress")
    stopped.process.terminate()
    events = stopped.finish()
    (checkpoint,), (result,) = only(events, "checkpoint"), only(events, "result")
    assert result["outcome"] == "stopped"
    assert 0 < checkpoint["step"] == result["step"] < 5 * 44
    written = json.loads((tmp_path / "stopped/result.json").read_text())
    assert written == {"outcome": "stopped", "step": result["step"]}
    assert "parameters_sha256" not in result, "a stop leaves no time to gather and export a model"
    assert not stopped.fingerprints()
    assert not list((tmp_path / "stopped/cloudtrain-output").rglob("model.*"))
    folder = tmp_path / "stopped" / checkpoint["path"]
    assert {p.name for p in folder.iterdir()} == {"manifest.json", "shared.json", "rank-0.pt", "rank-1.pt", "weights-0"}

    shutil.copytree(folder, tmp_path / "control" / checkpoint["path"])
    reseed_generators(tmp_path / "control" / checkpoint["path"])
    whole, resumed, control = (group(2, "--epochs 5", folder=name) for name in ("whole", "stopped", "control"))
    fingerprint = whole.succeed()["parameters_sha256"]
    assert resumed.succeed()["parameters_sha256"] == fingerprint
    assert control.succeed()["parameters_sha256"] != fingerprint
    for ranks in (resumed, control):
        assert [event["step"] for event in ranks.events("resumed")] == [result["step"]]
    assert [len(ranks.fingerprints()) for ranks in (whole, resumed, control)] == [1, 1, 1]


def reseed_generators(folder: Path) -> None:
    """Put other generators into a checkpoint, and their checksums into its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for rank in (0, 1):
        path = folder / f"rank-{rank}.pt"
        own = torch.load(path, weights_only=True)
        own["generators"]["torch"] = torch.Generator().manual_seed(99 + rank).get_state()
        torch.save(own, path)
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_three_ranks_resume_bit_identically_and_two_continue_from_them(tmp_path: Path, group: StartGroup) -> None:
    """With three ranks or more, a resume must also restore the order in which DDP adds gradients."""
    flags = "--epochs 1 --checkpoint-every-steps 20 --keep 9"
    whole = group(3, flags, folder="whole")
    fingerprint = whole.succeed()["parameters_sha256"]
    assert [event["step"] for event in whole.events("checkpoint")] == [20, 40, 44]
    step_20 = CHECKPOINTS / "step-00000020"
    for name in ("resumed", "fewer"):
        shutil.copytree(whole.folder / step_20, tmp_path / name / step_20)
    resumed = group(3, flags, folder="resumed")
    assert resumed.succeed()["parameters_sha256"] == fingerprint
    assert [event["step"] for event in resumed.events("resumed")] == [20]
    assert whole.fingerprints() == resumed.fingerprints() == {fingerprint}

    fewer = group(2, flags, folder="fewer")
    assert fewer.succeed()["step"] == 44
    assert "resumed on 2 ranks from a checkpoint of 3 (ddp, now ddp)" in fewer.output()
    assert len(fewer.fingerprints()) == 1


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (2, "--strategy ddp"),
        (2, "--strategy fsdp"),
        (2, "--strategy tp"),
        (2, "--strategy pipeline --microbatches 4"),
        (4, "--strategy hybrid --tensor 2"),
        (4, "--strategy hybrid --stages 2 --microbatches 4"),
    ],
    ids=["ddp", "fsdp", "tp", "pipeline", "data x tensor", "data x pipeline"],
)
def test_a_killed_run_resumes_bit_identically(group: StartGroup, ranks: int, flags: str) -> None:
    """Some of its ranks are killed at a random moment; batch norm and dropout are included."""
    chance = random.Random(int(os.environ.get("SEED", str(time.time_ns()))))
    flags += " --max-steps 50 --checkpoint-every-steps 7 --patience 9"
    whole = group(ranks, flags, folder="whole").succeed()
    killed = group(ranks, flags, folder="killed")
    killed.await_event("checkpoint")
    time.sleep(chance.random() * 0.3)
    killed.send_signal(signal.SIGKILL, *chance.sample(range(ranks), chance.randint(1, ranks)))
    assert any(killed.wait()), "it ended before it was killed"
    again = group(ranks, flags, folder="killed")
    assert again.succeed()["parameters_sha256"] == whole["parameters_sha256"], again.output()
    (resumed,) = again.events("resumed")
    assert 0 < resumed["step"] <= 50


@pytest.mark.parametrize(
    ("saved_by", "others"),
    [
        (
            "--strategy fsdp",
            [(2, "--strategy fsdp"), (2, "--strategy ddp"), (2, "--strategy tp"), (1, "--strategy single")],
        ),
        ("--strategy hybrid --tensor 2", [(2, "--strategy pipeline")]),
        ("--strategy hybrid --stages 2", [(2, "--strategy fsdp")]),
    ],
    ids=["fsdp", "data x tensor", "data x pipeline"],
)
def test_other_strategies_and_ranks_resume_with_the_same_loss(
    tmp_path: Path, group: StartGroup, short_text: Path, saved_by: str, others: list[tuple[int, str]]
) -> None:
    """Four ranks save a checkpoint. The next loss, and the evaluation after the next step, must be equal."""
    flags = "--task gpt --epochs 1 --checkpoint-every-steps 4 --batch-size 32 --warm-up 0"
    text = {"CLOUDTRAIN_INPUT_TEXT": str(short_text)}
    saved = group(4, f"{flags} {saved_by} --max-steps 4", folder="saved", **text)
    saved.succeed()
    losses = []
    for number, (ranks, strategy) in enumerate([(4, saved_by), *others]):
        copy_checkpoints(saved, tmp_path / f"resumed-{number}")
        resumed = group(ranks, f"{flags} {strategy} --max-steps 5", folder=f"resumed-{number}", **text)
        resumed.succeed()
        assert [event["step"] for event in resumed.events("resumed")] == [4], resumed.output()
        (progress,), (metrics,) = resumed.events("progress"), resumed.events("metrics")
        losses.append((progress["loss"], metrics["values"]["val_loss"]))
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=2e-6)


def test_another_layout_of_the_same_strategy_resumes_from_the_weights_alone(tmp_path: Path, group: StartGroup) -> None:
    """The random generators of each rank fit only the layout that saved them, and the log says so."""
    flags = "--task digits --epochs 1 --batch-size 36 --strategy hybrid"
    saved = group(6, f"{flags} --stages 2 --microbatches 6 --max-steps 3", folder="saved")
    saved.succeed()
    for layout, more in (("--stages 3", "--microbatches 6"), ("--tensor 2", "")):
        folder = layout.replace(" ", "")
        copy_checkpoints(saved, tmp_path / folder)
        resumed = group(6, f"{flags} {layout} {more} --max-steps 4", folder=folder)
        assert resumed.succeed()["step"] == 4
        expected = f"from a checkpoint of 6 (hybrid --stages 2, now hybrid {layout}): weights"
        assert expected in resumed.output(), resumed.output()


@pytest.mark.parametrize(
    ("flags", "writers"),
    [
        ("--strategy ddp", [0]),
        ("--strategy hsdp --shard 2", [0, 1]),
        ("--strategy hybrid --tensor 2", [0, 1, 2, 3]),
        ("--strategy hybrid --stages 2", [0, 1]),
    ],
    ids=["ddp", "hsdp", "data x tensor", "data x pipeline"],
)
def test_ranks_that_hold_one_complete_model_write_it_and_one_process_resumes(
    group: StartGroup, flags: str, writers: list[int]
) -> None:
    """Ranks with copies of the same shards copy nothing to host memory. Only rank 0 gathers the full weights."""
    base = "--task digits --epochs 1 --max-steps 3 --batch-size 32"
    four = group(4, f"{base} {flags}", before="tests.entrypoints.rank_hooks:check_gathered_weights")
    fingerprint = four.succeed()["parameters_sha256"]
    assert [rank for rank, log in enumerate(four.logs) if "copied to host memory" in log.read_text()] == writers
    single = group(1, f"{base} --strategy single")
    assert single.succeed()["parameters_sha256"] == fingerprint, single.output()
    assert [event["step"] for event in single.events("resumed")] == [3], single.output()
