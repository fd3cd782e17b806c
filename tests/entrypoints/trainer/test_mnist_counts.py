"""MNIST reaches a device as bytes."""

from __future__ import annotations

import pytest
import torch

from cloudtrain_trainer import tasks
from cloudtrain_trainer.tasks import Draw, Task, digits
from tests.support.counts import counting

pytestmark = pytest.mark.once


def bytes_to_device(task: Task, samples: int) -> int:
    """Return the size of a batch of this many training samples when it leaves the host."""
    batch = task.train[Draw(0, [index % len(task.train) for index in range(samples)])]
    return sum(tensor.nbytes for tensor in batch)


def test_images_reach_the_device_as_bytes_and_one_kernel_normalizes_them() -> None:
    """Eight bytes are the label; as float32 the images would be four times as much."""
    task = tasks.build("mnist", 0, data="digits")
    assert bytes_to_device(task, 64) == 64 * (784 + 8)
    images, _ = task.train[Draw(0, list(range(4)))]
    assert task.on_device is not None
    expected = (images.float() / 255 - digits.MEAN) / digits.DEVIATION
    for memory_format in (torch.contiguous_format, torch.channels_last):
        with counting() as counts:
            converted = task.on_device(images.to(memory_format=memory_format))
        assert converted.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(converted, expected, rtol=1e-6, atol=1e-6)
        assert counts.by_name["add"] == 1
