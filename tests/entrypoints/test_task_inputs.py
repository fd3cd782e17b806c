"""The data of tasks: text, folders of images, and the files of MNIST, which are not trusted."""

from __future__ import annotations

import gzip
import hashlib
import random
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cloudtrain_trainer import tasks
from cloudtrain_trainer.data import dataset_files
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, gpt, mnist, resnet50

# Text


def test_gpt_targets_are_the_next_bytes_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "second.txt").write_bytes(bytes(range(100, 200)) * 20)
    (tmp_path / "a.txt").write_bytes(bytes(range(100)) * 20)
    monkeypatch.setenv(gpt.INPUT, str(tmp_path))
    task = tasks.build("gpt", 0, context=16)
    assert len(task.train) == (3600 - 1) // 16 - 1
    inputs, following = task.train[Draw(0, [0, 222])]
    assert torch.equal(inputs[:, 1:], following[:, :-1])
    assert torch.equal((inputs[0] + 1) % 100, following[0])
    assert inputs[1].min() >= 100


def test_too_little_or_too_much_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpt.INPUT, str(tmp_path))
    with pytest.raises(Refused, match="no text to train on: give the job an input called text"):
        tasks.build("gpt", 0)
    (tmp_path / "a.txt").write_bytes(b"short")
    with pytest.raises(
        Refused, match="5 bytes of text are too few for sequences of 64: give at least 650 bytes"
    ):
        tasks.build("gpt", 0)
    monkeypatch.setattr(gpt, "MAX_BYTES", 4)
    with pytest.raises(Refused, match="which every rank reads: use less text"):
        tasks.build("gpt", 0)


# Images


@pytest.fixture
def image_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Red and blue images of different sizes, in two class folders; set as the job's input."""
    image = pytest.importorskip(
        "PIL.Image", reason="Pillow is not installed (the dev extra has it)"
    )
    for part, count in (("train", 3), ("val", 2)):
        for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
            (tmp_path / part / name).mkdir(parents=True)
            for index in range(count):
                picture = image.linear_gradient("L").resize((90 + 20 * index, 70))
                image.merge(
                    "RGB", [picture.point(lambda v, c=c: v * c // 255) for c in colour]
                ).save(tmp_path / part / name / f"{index}.png")
    (tmp_path / "train" / "red" / "notes.txt").write_text("not an image")
    monkeypatch.setenv(resnet50.INPUT, str(tmp_path))
    return tmp_path


def test_images_are_read_from_folders_of_classes(image_folders: Path) -> None:
    task = tasks.build("resnet50", 0, size="tiny", image_size=32)
    assert (len(task.train), len(task.validation), task.workers) == (6, 4, None)
    images, labels = task.train[Draw(0, [0, 3, 5])]
    assert images.shape == (3, 3, 32, 32)
    assert labels.tolist() == [0, 1, 1]
    assert images.dtype == torch.uint8
    assert task.on_device is not None
    assert task.model()(task.on_device(images)).shape == (3, 2)
    red = images[1, 0].float().mean()
    blue = images[1, 2].float().mean()
    assert red > blue, "the channels must be in the order red, green, blue"


def test_crops_are_a_function_of_seed_epoch_and_index(image_folders: Path) -> None:
    data, held_out = (
        getattr(tasks.build("resnet50", 0, size="tiny"), part) for part in ("train", "validation")
    )
    batch = data[Draw(1, [2, 4])][0]
    assert torch.equal(data[Draw(1, [4])][0][0], batch[1])
    assert not torch.equal(data[Draw(2, [4])][0][0], batch[1])
    assert torch.equal(held_out[Draw(1, [0])][0], held_out[Draw(2, [0])][0])


def test_an_image_that_cannot_be_read_is_named(image_folders: Path) -> None:
    broken = image_folders / "train" / "blue" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(RuntimeError, match=r"blue/0\.png cannot be read as an image"):
        tasks.build("resnet50", 0, size="tiny").train[Draw(0, [0])]


def test_folders_of_another_layout_are_refused(
    image_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image_folders / "val" / "green").mkdir()
    with pytest.raises(Refused, match=r"val/green is a class that .*train does not have"):
        tasks.build("resnet50", 0)
    monkeypatch.setenv(resnet50.INPUT, str(image_folders / "train"))
    with pytest.raises(Refused, match="needs train/CLASS"):
        tasks.build("resnet50", 0)


def test_images_without_pillow_or_without_an_input_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Refused, match="needs an input called images"):
        tasks.build("resnet50", 0, data="images")
    monkeypatch.setenv(resnet50.INPUT, "/nowhere")
    monkeypatch.setattr(resnet50, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="pip install pillow"):
        tasks.build("resnet50", 0)


def test_a_random_crop_lies_inside_its_image() -> None:
    for size in ((90, 70), (1, 1), (1000, 3)):
        for number in range(50):
            x_min, top, right, bottom = resnet50.crop(*size, random.Random(number))
            assert 0 <= x_min < right <= size[0] + 1e-9
            assert 0 <= top < bottom <= size[1] + 1e-9


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
    return {name: idx_file(values) for name, values in zip(mnist.FILES, contents, strict=True)}


@pytest.fixture
def server(mnist_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Provide a local server of the files, in the place of MNIST's; return the requested paths."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            content = mnist_files.get(self.path[1:])
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        digests = {
            name: (len(data), hashlib.sha256(data).hexdigest())
            for name, data in mnist_files.items()
        }
        monkeypatch.setattr(mnist, "ADDRESS", f"http://127.0.0.1:{serving.server_port}/")
        monkeypatch.setattr(mnist, "FILES", digests)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield requested
        serving.shutdown()
        thread.join()


def set_input(files: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files to a folder and make it the input of the job."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv(mnist.INPUT, str(folder))


def test_mnist_is_downloaded_once_into_the_cache(server: list[str], own_home: Path) -> None:
    task = tasks.build("mnist", 0)
    assert (len(task.train), len(task.validation)) == (40, 20)
    assert task.train[Draw(0, [3, 4])][0].shape == (2, 1, 28, 28)
    assert server == ["/" + name for name in mnist.FILES]
    tasks.build("mnist", 1)
    assert len(server) == 4
    cached = own_home / ".cache" / "cloudtrain" / "mnist" / "train-labels-idx1-ubyte.gz"
    cached.write_bytes(b"changed meanwhile")
    tasks.build("mnist", 0)
    assert server[4:] == ["/train-labels-idx1-ubyte.gz"]


def test_the_ranks_of_a_node_download_once(server: list[str]) -> None:
    ranks = [threading.Thread(target=mnist.read) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(server) == 4


def test_a_download_with_another_checksum_is_refused(
    server: list[str], mnist_files: dict[str, bytes]
) -> None:
    mnist_files["train-labels-idx1-ubyte.gz"] = idx_file(torch.zeros(40, dtype=torch.uint8))
    with pytest.raises(
        Refused, match=r"train-labels.* has changed: its sha256 is .*input called mnist"
    ):
        tasks.build("mnist", 0)
    assert not list(dataset_files.cache_folder("mnist").glob("train-labels*"))


def test_a_download_stops_after_the_expected_size(
    server: list[str], mnist_files: dict[str, bytes]
) -> None:
    name = "train-images-idx3-ubyte.gz"
    size = len(mnist_files[name])
    mnist_files[name] += b"x" * 1_000_000
    assert len(dataset_files._download(mnist.ADDRESS + name, size)) == size + 1
    with pytest.raises(Refused, match="has changed: its sha256 is"):
        tasks.build("mnist", 0)


def test_a_failed_download_says_what_to_do(
    server: list[str], mnist_files: dict[str, bytes]
) -> None:
    mnist_files.clear()
    with pytest.raises(
        Refused, match=r"could not be downloaded .*404.*CLOUDTRAIN_INPUT_MNIST.*--data digits"
    ):
        tasks.build("mnist", 0)


def test_a_slow_download_times_out(server: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "DOWNLOAD_TIMEOUT_SECONDS", -1)
    with pytest.raises(Refused, match="took longer than"):
        tasks.build("mnist", 0)


def test_mnist_is_read_from_an_input(
    mnist_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_input(mnist_files, tmp_path, monkeypatch)
    images, labels = tasks.build("mnist", 0).validation[Draw(0, [7])]
    assert labels.dtype == torch.int64
    raw = dataset_files.read_idx(tmp_path / "t10k-images-idx3-ubyte.gz", 3)
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
        (
            IMAGES,
            idx_file(torch.zeros(40, 28, dtype=torch.uint8)),
            "is not an idx file of bytes in 3 dimensions",
        ),
        (IMAGES, b"plain text", "cannot be read: Not a gzipped file"),
        (IMAGES, gzip.compress(b"\0\0", mtime=0), "is not an idx file"),
        (
            IMAGES,
            gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12, mtime=0),
            "bytes: expected 1 to 268435456",
        ),
        (
            LABELS,
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 40) + bytes(39), mtime=0),
            "is truncated: 39 of 40 bytes",
        ),
        (
            LABELS,
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 40) + bytes(41), mtime=0),
            "has data after its 40 bytes",
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


def test_a_missing_file_of_the_input_is_named(
    mnist_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_input(
        {name: content for name, content in mnist_files.items() if name != LABELS},
        tmp_path,
        monkeypatch,
    )
    with pytest.raises(Refused, match=rf"{LABELS} cannot be read: .*No such file"):
        tasks.build("mnist", 0)
