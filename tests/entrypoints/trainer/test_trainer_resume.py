"""Resuming: bit-identical with the same strategy and ranks, and from the same weights with any
other.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from cloudtrain_trainer.checkpoints import sums
from tests.entrypoints.groups import Group, StartGroup
from tests.entrypoints.trainer.launching import exported
from tests.entrypoints.trainer.rank_hooks import KILL

HOOKS = "tests.entrypoints.trainer.rank_hooks"
CHECKPOINTS = Path("cloudtrain-output/checkpoints")


def copy_checkpoint(source: Group, step: int, target: Path) -> None:
    """Copy the checkpoint of a step of one run into another folder."""
    folder = CHECKPOINTS / f"step-{step:08d}"
    shutil.copytree(source.folder / folder, target / folder)


def test_a_stopped_run_resumes_bit_identically(tmp_path: Path, group: StartGroup) -> None:
    """With a control: a resume with other generators must end with other weights, or the equality
    proves nothing.
    """
    flags = "--epochs 2 --batch-size 64"
    stopped = group(2, flags, folder="stopped", before=f"{HOOKS}:terminate_rank_1_in_step_5")
    result = stopped.succeed()
    (checkpoint,) = stopped.events("checkpoint")
    assert result["outcome"] == "stopped"
    assert 5 < checkpoint["step"] == result["step"] < 2 * 22
    written = json.loads((tmp_path / "stopped/result.json").read_text())
    assert written == {"outcome": "stopped", "step": result["step"]}
    assert "parameters_sha256" not in result, "a stop leaves no time to gather and export a model"
    assert not stopped.fingerprints()
    assert not list((tmp_path / "stopped/cloudtrain-output").rglob("model.*"))
    folder = tmp_path / "stopped" / checkpoint["path"]
    assert {p.name for p in folder.iterdir()} == {
        "manifest.json",
        "shared.json",
        "rank-0.pt",
        "rank-1.pt",
        "weights-0",
    }

    copy_checkpoint(stopped, checkpoint["step"], tmp_path / "control")
    reseed_generators(tmp_path / "control" / checkpoint["path"])
    whole, resumed, control = (
        group(2, flags, folder=name) for name in ("whole", "stopped", "control")
    )
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
        saved = torch.load(path, weights_only=True)
        saved["generators"]["torch"] = torch.Generator().manual_seed(99 + rank).get_state()
        torch.save(saved, path)
        manifest["files"][path.name] = sums.digest_without_records(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_resume_trains_with_the_settings_that_are_set_by_hand(
    tmp_path: Path, group: StartGroup
) -> None:
    flags = "--strategy single --batch-size 64 --checkpoint-every-steps 2 --max-steps 4"
    whole = group(1, f"{flags} --lr 0.01", folder="whole")
    unchanged = whole.succeed()["parameters_sha256"]
    copy_checkpoint(whole, 2, tmp_path / "changed")
    changed = group(1, f"{flags} --lr 0.5 --weight-decay 0", folder="changed")
    assert changed.succeed()["parameters_sha256"] != unchanged


@pytest.mark.once
def test_three_ranks_resume_bit_identically(tmp_path: Path, group: StartGroup) -> None:
    """With three ranks or more, a resume must also restore DDP's order of adding gradients."""
    flags = "--epochs 1 --batch-size 96 --checkpoint-every-steps 6 --keep 9"
    whole = group(3, flags, folder="whole")
    fingerprint = whole.succeed()["parameters_sha256"]
    assert [event["step"] for event in whole.events("checkpoint")] == [6, 12, 14]
    copy_checkpoint(whole, 6, tmp_path / "resumed")
    resumed = group(3, flags, folder="resumed")
    assert resumed.succeed()["parameters_sha256"] == fingerprint
    assert [event["step"] for event in resumed.events("resumed")] == [6]
    assert whole.fingerprints() == resumed.fingerprints() == {fingerprint}


NORMED = "--model tests.entrypoints.trainer.own_models:Normed --task digits"
LATE = "--optimizer tests.entrypoints.trainer.own_code:late"


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (2, "--strategy ddp"),
        (2, f"--strategy ddp {NORMED} {LATE} --accumulate 2 --ema 0.9 --amp fp16 --workers 1"),
        pytest.param(1, f"--strategy dp {LATE}", marks=pytest.mark.thorough),
        pytest.param(3, "--strategy ddp --amp bf16", marks=pytest.mark.thorough),
    ],
    ids=["ddp", "ddp with all kinds of state", "dp", "three ranks"],
)
def test_a_killed_run_resumes_bit_identically(
    tmp_path: Path, group: StartGroup, ranks: int, flags: str
) -> None:
    """Some of its ranks are killed at some moment; batch norm and dropout are included. So is
    the best model.
    """
    chance = random.Random(os.environ.get("SEED", flags))
    flags = (
        f"--batch-size 160 {flags} --max-steps 10 --checkpoint-every-steps 2 --eval-every-steps 2"
        " --patience 9"
    )
    whole = group(ranks, flags, folder="whole").succeed()
    victims = chance.sample(range(ranks), chance.randint(1, ranks))
    moment = [chance.randint(4, 8), round(chance.random() * 0.05, 4), *victims]
    killed = group(
        ranks,
        flags,
        folder="killed",
        before=f"{HOOKS}:kill_at_a_moment",
        **{KILL: " ".join(map(str, moment))},
    )
    assert any(killed.wait()), "it ended before it was killed"
    restarted = group(ranks, flags, folder="killed")
    assert restarted.succeed()["parameters_sha256"] == whole["parameters_sha256"], (
        f"killed at {moment}\n{restarted.output()}"
    )
    (resumed,) = restarted.events("resumed")
    assert 0 < resumed["step"] <= 10
    (expected, *_), (actual, *_) = (
        sorted((tmp_path / name).glob("*/model/model.*")) for name in ("whole", "killed")
    )
    assert actual.read_bytes() == expected.read_bytes(), "the best weights"


@pytest.mark.once
def test_other_numbers_of_ranks_and_strategies_resume_with_the_same_loss(
    tmp_path: Path, group: StartGroup
) -> None:
    """The evaluation after the next step must equal that of the uninterrupted run."""
    flags = (
        "--task tests.entrypoints.trainer.own_models:padded --epochs 1 --max-steps 3"
        " --checkpoint-every-steps 2 --batch-size 24 --warm-up 0"
    )
    whole = group(3, flags, folder="whole")
    whole.succeed()
    (expected,) = whole.events("metrics")
    for ranks, strategy in ((2, "ddp"), (1, "ddp"), (1, "dp"), (1, "single")):
        name = f"{ranks}-{strategy}"
        copy_checkpoint(whole, 2, tmp_path / name)
        resumed = group(ranks, f"{flags} --strategy {strategy}", folder=name)
        resumed.succeed()
        assert [event["step"] for event in resumed.events("resumed")] == [2], resumed.output()
        assert "the random generators are seeded anew" in resumed.output()
        (metrics,) = resumed.events("metrics")
        assert metrics["step"] == expected["step"] == 3
        loss = metrics["values"]["val_loss"]
        assert loss == pytest.approx(expected["values"]["val_loss"], rel=2e-6), name


@pytest.mark.once
def test_batch_norm_is_evaluated_and_exported_alike_on_all_ranks(
    tmp_path: Path, group: StartGroup
) -> None:
    """Each rank sees other samples; the best weights come with the statistics of their evaluation."""
    flags = f"{NORMED} --epochs 3 --lr 0.1"
    run = group(2, f"{flags} --batch-size 160 --lr-schedule constant --warm-up 0 --patience 9")
    run.succeed()
    first, second = (
        torch.load(tmp_path / f"statistics-{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    assert len(first) == len(second) == 3
    for mine, other in zip(first, second, strict=True):
        assert all(map(torch.equal, mine, other))
    assert not torch.equal(first[0][0], first[1][0]), "training changes them"

    losses = [event["values"]["val_loss"] for event in run.events("metrics")]
    best = first[losses.index(min(losses))]
    model = exported(tmp_path / "cloudtrain-output/model")
    statistics = (model[f"norm.{name}"] for name in ("running_mean", "running_var"))
    assert all(map(torch.equal, statistics, best[:2]))
