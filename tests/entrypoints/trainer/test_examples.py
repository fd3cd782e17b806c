"""The examples of tasks and the script of `cloudtrain init` train on small data."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml

import cloudtrain
from tests.entrypoints.groups import Group, StartGroup

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def train(name: str, folder: Path, group: StartGroup, ranks: int, flags: str, **env: str) -> Group:
    """Ranks of the example with the arguments of its job.yaml, and with other `flags`."""
    shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True)
    args = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())["args"]
    flag_text = " ".join(
        f"--{option}={value}" for option, value in args.items() if f"--{option}" not in flags
    )
    return group(ranks, f"{flag_text} {flags}", **env)


def last_metrics(group: Group) -> dict[str, Any]:
    group.succeed()
    values: dict[str, Any] = group.events("metrics")[-1]["values"]
    return values


def test_pictures_in_folders_are_classified(tmp_path: Path, group: StartGroup) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 6)):
        for label, level in (("dark", 60), ("light", 190)):
            folder = tmp_path / "pictures" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(level - 50, level + 50, (24, 24, 3), dtype=np.uint8)
                image.fromarray(pixels).save(folder / f"{number}.png")
    flags = "--epochs=3 --batch-size=8 --workers=0"
    trained = train(
        "images", tmp_path, group, 1, flags, CLOUDTRAIN_INPUT_PICTURES=str(tmp_path / "pictures")
    )
    assert last_metrics(trained)["val_accuracy"] >= 0.9


def test_a_language_model_learns_its_tokens(tmp_path: Path, group: StartGroup) -> None:
    (tmp_path / "tokens").mkdir()
    (np.arange(40_000) % 17).astype(np.uint16).tofile(tmp_path / "tokens" / "train.bin")
    env = {"CLOUDTRAIN_INPUT_TOKENS": str(tmp_path / "tokens"), "VOCABULARY": "32"}
    trained = train("language-model", tmp_path, group, 2, "--max-steps=15 --batch-size=16", **env)
    assert last_metrics(trained)["val_loss"] < 1.5  # of 2.8, where all 17 are as likely


def test_a_model_of_hugging_face_is_tuned_with_lora(tmp_path: Path, group: StartGroup) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("peft"), pytest.importorskip("datasets")
    words = {word: number for number, word in enumerate(["<end>", "<unknown>", *"abcdefgh"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unknown>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.save_pretrained(tmp_path / "model")
    shape = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=0, bos_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(shape).save_pretrained(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    for part, count in (("train", 64), ("val", 10)):
        lines = [
            json.dumps({"text": " ".join("abcdefgh"[number % 8 :])}) for number in range(count)
        ]
        (tmp_path / "texts" / f"{part}.jsonl").write_text("\n".join(lines))
    env = {
        "CLOUDTRAIN_INPUT_MODEL": str(tmp_path / "model"),
        "CLOUDTRAIN_INPUT_TEXTS": str(tmp_path / "texts"),
    }
    trained = train(
        "lora", tmp_path, group, 2, "--epochs=6 --lr=0.03", HF_HOME=str(tmp_path / "cache"), **env
    )
    losses = (
        [event["values"]["val_loss"] for event in trained.events("metrics")]
        if trained.wait() == [0, 0]
        else []
    )
    assert losses, trained.output()
    assert losses[-1] < losses[0]


Train = Callable[..., tuple[str, torch.Tensor]]
SCRIPT = Path(cloudtrain.__file__).parent / "cli" / "starter" / "train.py"


def test_a_checkpoint_that_was_cut_off_is_passed_over_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(SCRIPT), run_name="starter")
    cpu = torch.device("cpu")
    load = program["load"]
    save = program["save"]
    assert load(tmp_path, cpu) == {}
    for epoch in range(3):
        save({"model": torch.ones(1000), "epoch": epoch}, tmp_path)
    assert load(tmp_path, cpu)["epoch"] == 2
    newest = tmp_path / "latest.pt"
    for size in (newest.stat().st_size // 2, 10, 0):
        os.truncate(newest, size)
        assert load(tmp_path, cpu)["epoch"] == 1
    assert "latest.pt is damaged, the one before is tried" in capsys.readouterr().out


@pytest.fixture
def run_starter(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Train]:
    """Train as the only rank, with checkpoints and model in a folder; the output and the weights."""
    monkeypatch.setenv("RANK", "0")
    program = runpy.run_path(str(SCRIPT), run_name="starter")
    torch_distributed: Any = dist  # mypy knows no HashStore
    store = torch_distributed.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def run(folder: Path, epochs: int, lr: float = 0.05) -> tuple[str, torch.Tensor]:
        monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_DIR", str(folder / "checkpoints"))
        monkeypatch.setenv("CLOUDTRAIN_MODEL_DIR", str(folder))
        program["train"](argparse.Namespace(epochs=epochs, lr=lr))
        weights = torch.load(folder / "model.pt", weights_only=True)
        return capfd.readouterr().out, torch.cat([value.flatten() for value in weights.values()])

    yield run
    dist.destroy_process_group()


def test_a_resume_without_changes_ends_bit_identically(run_starter: Train, tmp_path: Path) -> None:
    _, expected = run_starter(tmp_path / "whole", epochs=4)
    run_starter(tmp_path / "parts", epochs=2)
    output, weights = run_starter(tmp_path / "parts", epochs=4)
    assert "continues after epoch 2" in output
    assert "lr is" not in output
    assert torch.equal(weights, expected)


def test_a_resume_trains_at_the_rate_that_is_set_by_hand(
    run_starter: Train, tmp_path: Path
) -> None:
    _, before = run_starter(tmp_path, epochs=1)
    output, after = run_starter(tmp_path, epochs=3, lr=0.0)
    assert "lr is 0.0; it was 0.05 in the checkpoint" in output
    assert "epochs is 3; it was 1 in the checkpoint" in output
    assert torch.equal(after, before)


def test_a_rate_that_a_schedule_has_changed_is_kept_if_nothing_is_set_by_hand() -> None:
    apply_changes = runpy.run_path(str(SCRIPT), run_name="starter")["apply_changes"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
    apply_changes(argparse.Namespace(epochs=2, lr=0.05), {"epochs": 1, "lr": 0.05}, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_an_argument_that_the_checkpoint_lacks_does_not_stop_a_resume(
    capsys: pytest.CaptureFixture[str],
) -> None:
    apply_changes = runpy.run_path(str(SCRIPT), run_name="starter")["apply_changes"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
    args = argparse.Namespace(lr=0.5, momentum=0.9)
    apply_changes(args, {"lr": 0.05, "width": 8}, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert capsys.readouterr().out == "lr is 0.5; it was 0.05 in the checkpoint\n"


def test_every_epoch_says_how_many_steps_there_are(run_starter: Train, tmp_path: Path) -> None:
    output, _ = run_starter(tmp_path, epochs=2)
    progress = [line for line in output.splitlines() if '"type":"progress"' in line]
    assert [
        '"step":50,"steps":100' in line or '"step":100,"steps":100' in line for line in progress
    ] == [True] * 2
