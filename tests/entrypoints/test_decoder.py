"""The decoder of the gpt computes what its parts say, one matrix at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.tasks.decoder import ROTARY_BASE, Block, Rotary, Shape

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
