"""Files of text as data of a language model: shared out once, and read on at the very sample."""

from __future__ import annotations

import gzip
import pickle
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer import tasks
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.data.token_files import TokenFiles, split
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, digits, gpt
from cloudtrain_trainer.tasks.gpt import ROTARY_BASE, Block, Rotary, Shape


@pytest.fixture
def files(tmp_path: Path) -> list[Path | np.ndarray]:
    """Two files and an array, of 101 tokens each."""
    paths: list[Path | np.ndarray] = []
    for name, first in (("a.txt", 0), ("b.txt", 120)):
        (tmp_path / name).write_bytes(bytes(range(first, first + 101)))
        paths.append(tmp_path / name)

    return [*paths, np.arange(2000, 2101)]


def test_sequences_of_all_files_are_read_in_any_order(files: list[Path | np.ndarray]) -> None:
    data = TokenFiles(files, context=10)
    inputs, targets = data[Draw(0, [29, 0, 10])]
    assert (len(data), inputs.dtype, inputs.shape) == (30, torch.int64, (3, 10))
    assert inputs[:, 0].tolist() == [2090, 0, 120]
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(pickle.loads(pickle.dumps(data))[Draw(0, [29, 0, 10])][0], inputs), (
        "in a loader process, too"
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_sequences_out_once_and_resume_at_the_very_one(
    files: list[Path | np.ndarray], ranks: int
) -> None:
    def read(skip: int) -> list[int]:
        data = TokenFiles(files, context=10, seed=0)
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


def test_sequences_begin_elsewhere_in_each_epoch(files: list[Path | np.ndarray]) -> None:
    data = TokenFiles(files[:1], context=10, seed=0)
    assert len({int(data[Draw(epoch, [0])][0][0, 0]) for epoch in range(20)}) > 5


def test_validation_is_the_end_of_each_file(files: list[Path | np.ndarray]) -> None:
    train, validation = split(files, 5, seed=0)
    assert int(train[Draw(0, list(range(len(train))))][1].max()) <= 2090
    assert validation[Draw(0, [0])][0].tolist() == [[90, 91, 92, 93, 94]]


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_bytes(bytes(9))
    with pytest.raises(Refused, match="too few tokens for one sequence of 10"):
        TokenFiles([tmp_path / "short.txt"], context=10)
    with pytest.raises(Refused, match=r"gone\.txt cannot be read"):
        TokenFiles([tmp_path / "gone.txt"], context=10)


SHAPE = Shape(vocabulary=256, context=16, width=32, layers=2, heads=4)


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by their positions: (..., sequence, features) -> the same shape."""
    half = x.shape[-1] // 2
    speed = ROTARY_BASE ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    first, second = x.chunk(2, dim=-1)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.cat(turned, dim=-1)


def test_attention_splits_its_matrix_into_query_key_and_value_by_head() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, SHAPE.width)
    attention = Block(SHAPE, Rotary()).attention

    by_head = attention.qkv.weight.view(SHAPE.heads, 3, -1, SHAPE.width).unbind(1)
    query, key, value = (
        F.linear(x, weight.flatten(0, 1)).view(2, 16, SHAPE.heads, -1).transpose(1, 2)
        for weight in by_head
    )
    mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)

    expected = F.linear(mixed.transpose(1, 2).flatten(2), attention.out.weight)
    torch.testing.assert_close(attention(x), expected)


def test_feed_forward_splits_its_matrix_into_gate_and_up_by_group() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, SHAPE.width)
    feed = Block(SHAPE, Rotary()).feed

    by_group = feed.gate_up.weight.view(SHAPE.tensor_limit, 2, -1, SHAPE.width).unbind(1)
    gate, up = (F.linear(x, weight.flatten(0, 1)) for weight in by_group)

    expected = F.linear(F.silu(gate) * up, feed.down.weight)
    torch.testing.assert_close(feed(x), expected)


def test_bf16_is_rotated_in_float32() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, SHAPE.heads, 8).bfloat16()

    expected = rotated(x.float().transpose(1, 2)).transpose(1, 2)
    assert torch.equal(Rotary()(x), expected.bfloat16())


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


# Images


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
