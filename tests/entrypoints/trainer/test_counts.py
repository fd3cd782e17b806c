"""GPU work of a training step, counted without a GPU: kernels, bytes, waits."""

from __future__ import annotations

import pytest
import torch

from cloudtrain_trainer import tasks
from cloudtrain_trainer.tasks import Draw, digits
from tests.support.counted_steps import (
    bytes_to_device,
    count_ours,
)
from tests.support.counts import counting

pytestmark = pytest.mark.once

LAUNCHES = 1198
GIGABYTES = 123.3
"""Of our step of GPT-2 124M on 16 sequences of 1,024 tokens, in eager mode: lower them with what
lowers the counts. A compiled step needs fewer than one written by hand (docs/concepts).
"""


def test_a_step_of_gpt2_needs_no_more_than_before() -> None:
    counts = count_ours(16)
    assert counts.waits == []
    assert counts.launches <= LAUNCHES
    assert counts.other_bytes <= GIGABYTES * 1e9
    products_of_a_layer = 4 * 3  # four matrices; their products, and both gradients
    assert counts.by_name["mm"] == 12 * products_of_a_layer + 3, "and the head's"


def test_a_further_micro_batch_adds_forward_and_backward_pass_only() -> None:
    one = count_ours(16, "--accumulate", "1", layers=2)
    two = count_ours(32, "--accumulate", "2", layers=2)
    assert two.waits == []
    assert two.by_name["_fused_adamw_"] == one.by_name["_fused_adamw_"]
    assert two.by_name["mm"] == 2 * one.by_name["mm"]


def test_recomputing_repeats_forward_passes() -> None:
    layers = 2
    stored, blocks = (
        count_ours(16, "--recompute", how, layers=layers).by_name for how in ("none", "blocks")
    )
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert (stored[attention], blocks[attention]) == (layers, 2 * layers)
    assert stored["mm"] < blocks["mm"] <= stored["mm"] + layers * 4, (
        "what the backward pass does not need is left out"
    )
    assert blocks["rsqrt"] > stored["rsqrt"], "the norms"


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
