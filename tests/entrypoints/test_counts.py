"""GPU work of a training step, counted without a GPU: kernels, bytes, waits, messages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.partition import repeated_blocks
from cloudtrain_trainer.tasks import Draw, digits
from cloudtrain_trainer.tasks.gpt import SIZES
from tests.support.counted_steps import (
    bytes_to_device,
    count_collectives,
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


def matrices_and_all() -> tuple[int, int, int]:
    """Bytes in float32 of one of the tiny gpt's layers, of all its parameters, and the number of
    layers.
    """
    task = tasks.build("gpt", 0)
    model = task.model()
    layers = repeated_blocks(model)
    return _bytes(layers[0]), _bytes(model), len(layers)


def _bytes(module: nn.Module) -> int:
    return sum(4 * parameter.numel() for parameter in module.parameters())


def test_ddp_sends_the_gradients_once_per_step() -> None:
    _, parameters, _ = matrices_and_all()
    counts = count_collectives(4, "--strategy", "ddp", "--accumulate", "4")
    assert counts.collectives == {"all_reduce": 1}, "they fit into one bucket"
    assert counts.collective_bytes == {"all_reduce": parameters}
    assert counts.waits == []


def test_fsdp_gathers_each_layer_twice_and_reduces_it_once() -> None:
    """Embedding, last norm and head are a unit that stays gathered until the backward pass."""
    layer, parameters, layers = matrices_and_all()
    counts = count_collectives(4, "--strategy", "fsdp", "--clip-norm", "1")
    assert +counts.collectives == {
        "all_gather": 2 * layers + 1,
        "reduce_scatter": layers + 1,
        "all_reduce": 1,
    }
    assert counts.collective_bytes["all_gather"] == parameters + layers * layer
    assert counts.collective_bytes["reduce_scatter"] == parameters
    assert counts.waits == []


def test_hsdp_sums_its_shard_between_groups_once_per_step() -> None:
    accumulate = 2
    _, parameters, layers = matrices_and_all()
    counts = count_collectives(
        4, "--strategy", "hsdp", "--shard", "2", "--accumulate", str(accumulate)
    )
    gathers = accumulate * (2 * layers + 1)
    sums = accumulate * (layers + 1)
    assert counts.collectives == {
        "all_gather": gathers,
        "reduce_scatter": sums,
        "all_reduce": layers + 1,
    }
    assert counts.collective_bytes["all_reduce"] == parameters / 2
    assert counts.waits == []


def test_tp_gathers_and_scatters_tokens_four_times_per_layer() -> None:
    """Each layer does so twice in the forward and twice in the backward pass; embedding and head
    once in each.

    The logits are not gathered: the loss sends three numbers per token. Clipping adds one number
    for each of two ways of splitting.
    """
    _, _, layers = matrices_and_all()
    counts = count_collectives(4, "--strategy", "tp", "--clip-norm", "1")
    assert counts.collectives == {
        "all_gather": 4 * layers + 2,
        "reduce_scatter": 4 * layers + 2,
        "all_reduce": 3 + 3,
    }
    assert counts.waits == []


def test_data_by_tensor_sends_what_both_send() -> None:
    """And the gradient of each norm, which tp alone sends together. Clipping adds numbers for the
    ways of splitting.
    """
    _, _, layers = matrices_and_all()
    norms = 2 * layers + 1
    counts = count_collectives(4, "--strategy", "hybrid", "--tensor", "2", "--clip-norm", "1")
    assert counts.collectives["all_gather"] == (2 * layers + 1) + (4 * layers + 2)
    assert counts.collectives["reduce_scatter"] == (layers + 1) + (4 * layers + 2)
    assert counts.collectives["all_reduce"] == norms + 5 + 3
    assert counts.waits == []


@pytest.mark.parametrize(
    ("ranks", "rank", "schedule", "boundaries"),
    [
        (4, 3, "1f1b", 1),
        (4, 1, "gpipe", 2),
    ],
)
def test_a_pipeline_sends_each_micro_batch_over_each_boundary_forward_and_back(
    ranks: int, rank: int, schedule: str, boundaries: int
) -> None:
    """`boundaries`: between the stage of this rank and others."""
    shape = SIZES["tiny"]
    batch = 32
    microbatches = 2 * ranks
    counts = count_collectives(ranks, "--strategy", "pipeline", "--schedule", schedule, rank=rank)
    messages = boundaries * microbatches
    assert +counts.collectives == {
        "send": messages,
        "receive": messages,
    }, "an activation one way, a gradient the other"
    activations = batch * shape.context * shape.width * 4
    assert (
        counts.collective_bytes["send"]
        == counts.collective_bytes["receive"]
        == boundaries * activations
    )
    assert counts.waits == []


def test_data_by_pipeline_also_sums_the_gradients_of_each_stage_once() -> None:
    _, parameters, _ = matrices_and_all()
    counts = count_collectives(4, "--strategy", "hybrid", "--stages", "2")
    assert +counts.collectives == {"send": 4, "receive": 4, "all_reduce": 1}
    assert 0.4 * parameters < counts.collective_bytes["all_reduce"] < 0.6 * parameters
    assert counts.waits == []
