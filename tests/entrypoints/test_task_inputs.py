"""The data of tasks: text, and the files of MNIST, which are not trusted."""

from __future__ import annotations

import gzip
import struct
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cloudtrain_trainer import tasks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, digits, gpt, resnet50

# Text


def test_gpt_targets_are_the_next_bytes_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "second.txt").write_bytes(bytes(range(100, 200)) * 20)
    (tmp_path / "a.txt").write_bytes(bytes(range(100)) * 20)
    (tmp_path / "empty.txt").touch()
    monkeypatch.setenv(gpt.INPUT, str(tmp_path))
    task = tasks.build("gpt", 0, context=16)
    assert len(task.train) == 2 * ((1800 - 1) // 16 - 1)
    inputs, following = task.train[Draw(0, [0, 200])]
    assert torch.equal(inputs[:, 1:], following[:, :-1])
    assert torch.equal((inputs[0] + 1) % 100, following[0])
    assert inputs[1].min() >= 100


def test_too_little_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpt.INPUT, str(tmp_path))
    with pytest.raises(Refused, match="no text to train on: give the job an input called text"):
        tasks.build("gpt", 0)
    (tmp_path / "a.txt").write_bytes(b"short")
    with pytest.raises(Refused, match=r"a\.txt: too few tokens for one sequence of 64"):
        tasks.build("gpt", 0)


# Images


def test_images_that_would_not_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(resnet50.INPUT, "/images")
    with pytest.raises(Refused, match="does not read the input images"):
        tasks.build("resnet50", 0)


# MNIST


def idx_file(values: Tensor) -> bytes:
    """A gzipped idx file of a uint8 tensor."""
    header = bytes((0, 0, 8, values.dim())) + struct.pack(f">{values.dim()}I", *values.shape)
    return gzip.compress(header + values.numpy().tobytes(), compresslevel=1, mtime=0)


@pytest.fixture
def mnist_files() -> dict[str, bytes]:
    """MNIST's files by name, with 40 and 20 images."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, generator=generator, dtype=torch.uint8)
    contents = [draw(256, (40, 28, 28)), draw(10, (40,)), draw(256, (20, 28, 28)), draw(10, (20,))]
    return {name: idx_file(values) for name, values in zip(digits.FILES, contents, strict=True)}


def set_input(files: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files to a folder and make it the input of the job."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv(digits.INPUT, str(folder))


def test_mnist_is_read_from_an_input(
    mnist_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_input(mnist_files, tmp_path, monkeypatch)
    images, labels = tasks.build("mnist", 0).validation[Draw(0, [7])]
    assert labels.dtype == torch.int64
    raw = digits.read_idx(tmp_path / "t10k-images-idx3-ubyte.gz", 3)
    assert torch.equal(images[0, 0], raw[7])


IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            IMAGES,
            idx_file(torch.zeros(39, 28, 28, dtype=torch.uint8)),
            r"\(39, 28, 28\) pixels: expected \(40, 28, 28\)",
        ),
        (IMAGES, idx_file(torch.zeros(40, 28, dtype=torch.uint8)), "is not an idx file of bytes"),
        (IMAGES, b"plain text", "cannot be read: Not a gzipped file"),
        (IMAGES, gzip.compress(b"\0\0", mtime=0), "is not an idx file"),
        (
            IMAGES,
            gzip.compress(b"\0\0\x08\x03" + b"\xff" * 13, mtime=0),
            "has 1 bytes, not those of its shape",
        ),
        (
            LABELS,
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 40) + bytes(39), mtime=0),
            "has 39 bytes, not those of its shape",
        ),
        (
            LABELS,
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 40) + bytes(41), mtime=0),
            "has 41 bytes, not those of its shape",
        ),
        (
            LABELS,
            idx_file(torch.zeros(40, dtype=torch.uint8))[:-12],
            "cannot be read: Compressed file ended",
        ),
        (
            LABELS,
            idx_file(torch.full((40,), 10, dtype=torch.uint8)),
            "has the label 10: expected 0 to 9",
        ),
    ],
    ids=[
        "too few",
        "two dimensions",
        "text",
        "too short",
        "huge",
        "cut off",
        "too long",
        "cut off inside",
        "label 10",
    ],
)
def test_invalid_mnist_files_are_refused(
    mnist_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    message: str,
) -> None:
    set_input({**mnist_files, name: content}, tmp_path, monkeypatch)
    with pytest.raises(Refused, match=message):
        tasks.build("mnist", 0)
