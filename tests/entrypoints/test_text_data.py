"""Files of tokens as data of a language model: shared out once, and read on at the very sample."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloudtrain_trainer import tasks
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.data.token_files import LLM_C_MAGIC, TokenFiles, token_data
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw


def write_tokens(folder: Path, name: str, first: int, count: int) -> Path:
    path = folder / name
    values = np.arange(first, first + count)
    if name.endswith(".npy"):
        np.save(path, values.astype(np.int32))
    elif "llm" in name:
        header = np.zeros(256, dtype=np.int32)
        header[:3] = LLM_C_MAGIC, 1, count
        path.write_bytes(header.tobytes() + values.astype(np.uint16).tobytes())
    else:
        values.astype(np.uint16).tofile(path)
    return path


NAMES = ("a.bin", "b.npy", "c-llm.bin")


@pytest.fixture
def token_folder(tmp_path: Path) -> Path:
    """Three files of every kind, of 101 tokens each."""
    for at, name in enumerate(NAMES):
        write_tokens(tmp_path, name, at * 1000, 101)
    return tmp_path


def test_sequences_of_all_files_are_read_in_any_order(token_folder: Path) -> None:
    data = TokenFiles([token_folder / name for name in NAMES], context=10)
    inputs, targets = data[Draw(0, [29, 0, 10])]
    assert (len(data), inputs.dtype, inputs.shape) == (30, torch.int64, (3, 10))
    assert inputs[:, 0].tolist() == [2090, 0, 1000]
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(pickle.loads(pickle.dumps(data))[Draw(0, [29, 0, 10])][0], inputs), (
        "in a loader process, too"
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_sequences_out_once_and_resume_at_the_very_one(
    token_folder: Path, ranks: int
) -> None:
    def read(skip: int) -> list[int]:
        data = TokenFiles([token_folder / name for name in NAMES], context=10, seed=0)
        loaded = [
            Batches(data, 0, 6, 1, rank, ranks, 0, pin_memory=False).load(1, skip)
            for rank in range(ranks)
        ]
        return [
            int(row[0])
            for step in zip(*loaded, strict=True)
            for inputs, _ in step
            for row in inputs
        ]

    whole = read(0)
    assert len(set(whole)) == len(whole) == 24
    assert read(12) == whole[12:]


def test_sequences_begin_elsewhere_in_each_epoch(token_folder: Path) -> None:
    data = TokenFiles([token_folder / "a.bin"], context=10, seed=0)
    assert len({int(data[Draw(epoch, [0])][0][0, 0]) for epoch in range(20)}) > 5


def test_validation_has_its_own_files_or_the_end_of_each(token_folder: Path) -> None:
    train, validation = token_data(token_folder, 5, seed=0)
    assert int(train[Draw(0, list(range(len(train))))][1].max()) <= 2090
    assert validation[Draw(0, [0])][0].tolist() == [[90, 91, 92, 93, 94]]
    write_tokens(token_folder, "my_val_000.bin", 5000, 21)
    train, validation = token_data(token_folder, 5, seed=0)
    assert (train.paths, len(validation)) == ([token_folder / name for name in NAMES], 4)


def test_token_files_that_cannot_be_used_are_refused(token_folder: Path) -> None:
    def refused(message: str, name: str, **options: Any) -> None:
        with pytest.raises(Refused, match=message):
            TokenFiles([token_folder / name], context=10, **options)[Draw(0, [0])]

    refused(
        "too few tokens for one sequence of 10", str(write_tokens(token_folder, "short.bin", 0, 9))
    )
    (token_folder / "odd.bin").write_bytes(bytes(43))
    refused("odd.bin has 43 bytes, not a multiple of 2, as uint16 needs", "odd.bin")
    np.save(token_folder / "floats.npy", np.ones(40))
    refused(r"floats.npy has float64 of shape \(40,\): expected whole numbers", "floats.npy")
    refused("nowhere.bin cannot be read as tokens", "nowhere.bin")
    refused("b.npy has the token 1010 after 0, and the model knows tokens below 256: is its type int32", "b.npy",
            vocabulary=256)  # fmt: skip
    (token_folder / "empty").mkdir()
    for name, message in (
        ("empty", "has no files of tokens"),
        ("nowhere", "is not a folder: expected one"),
    ):
        with pytest.raises(Refused, match=message):
            token_data(token_folder / name, 5)


def test_gpt_trains_on_an_input_of_tokens(
    token_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="--data tokens needs an input called tokens"):
        tasks.build("gpt", 0, data="tokens")
    monkeypatch.setenv("CLOUDTRAIN_INPUT_TOKENS", str(token_folder))
    task = tasks.build("gpt", 0, data="tokens", context=8)
    inputs, targets = task.train[Draw(0, [0, 1])]
    assert task.loss(task.call(task.model(), inputs, True), targets).item() == pytest.approx(
        np.log(50_304), rel=0.1
    )
