"""Checkpoints of earlier releases of the gpt, in which joined matrices were several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer import tasks
from cloudtrain_trainer.checkpoints import sharded
from cloudtrain_trainer.checkpoints.earlier_names import Joined, join
from cloudtrain_trainer.checkpoints.store import FoundCheckpoint
from cloudtrain_trainer.models.decoder import ROTARY_BASE, Block, Rotary, Shape, joined
from cloudtrain_trainer.training.loop import Loop

SHAPE = Shape(vocabulary=256, context=16, width=32, layers=2, heads=4)


def earlier_rotation(x: Tensor) -> Tensor:
    """Rotary positions as they were computed: (..., sequence, features)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * ROTARY_BASE ** (-torch.arange(half) / half)
    first, second = x.chunk(2, dim=-1)
    cos = angle.cos()
    sin = angle.sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def test_a_block_computes_with_joined_matrices_what_it_did_with_several() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, SHAPE.width)
    block = Block(SHAPE, Rotary())
    query, key, value = torch.randn(3, SHAPE.width, SHAPE.width) * 0.1
    gate, up = torch.randn(2, SHAPE.hidden, SHAPE.width) * 0.1
    rules = joined(SHAPE)
    with torch.no_grad():
        block.attention.qkv.weight.copy_(
            join([query, key, value], rules["attention.qkv.weight"].groups)
        )
        block.feed.gate_up.weight.copy_(join([gate, up], rules["feed.gate_up.weight"].groups))
        heads = [
            F.linear(x, weight).view(2, 16, SHAPE.heads, -1).transpose(1, 2)
            for weight in (query, key, value)
        ]
        rotated = earlier_rotation(heads[0]), earlier_rotation(heads[1])
        mixed = (
            F.scaled_dot_product_attention(*rotated, heads[2], is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        torch.testing.assert_close(block.attention(x), F.linear(mixed, block.attention.out.weight))
        fed = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), block.feed.down.weight)
        torch.testing.assert_close(block.feed(x), fed)


def test_weights_and_optimizer_state_in_parts_are_restored(
    make_loop: Callable[..., Loop],
    short_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_INPUT_TEXT", str(short_text))
    trained, fresh = (
        make_loop("--task", "gpt", "--batch-size", "4", "--seed", seed, task=tasks.build("gpt", 0))
        for seed in "01"
    )
    batches = trained.batches.load(0, 0)
    for step in range(2):
        trained.step.train_step(batches, step, 10)
    expected = sharded.tensors_of(trained.step.model, trained.step.optimizer)
    in_parts = dict(
        part
        for name, tensor in expected.items()
        for part in parts_of(name, tensor, trained.task.joined)
    )
    assert len(in_parts) == len(expected) + 4 * 4 * (2 + 1), (
        "4 layers, a weight and three slots each"
    )
    folder = tmp_path / "step-00000002"
    sharded.write(folder / "weights-0", in_parts, None)
    found = FoundCheckpoint(folder, 2, 1, "weights-0")
    fresh.checkpointer.checkpoints.load(
        found, fresh.step.model, fresh.step.optimizer, fresh.task.joined
    )
    restored = sharded.tensors_of(fresh.step.model, fresh.step.optimizer)
    assert list(restored) == list(expected)
    assert [name for name in expected if not torch.equal(restored[name], expected[name])] == []
    assert not list(tmp_path.glob("*.partial"))


def parts_of(name: str, tensor: Tensor, rules: Mapping[str, Joined]) -> list[tuple[str, Tensor]]:
    """The tensors that an earlier release would have stored for this one, with their names."""
    for end, rule in rules.items():
        if f".{end}" in name:
            count = len(rule.parts)
            rows = (
                tensor.view(rule.groups, count, -1, tensor.shape[-1]).unbind(1)
                if tensor.dim()
                else [tensor] * count
            )
            parts = [part.flatten(0, 1) if tensor.dim() else part for part in rows]
            return [
                (name.replace(end, old), part.clone())
                for old, part in zip(rule.parts, parts, strict=True)
            ]
    return [(name, tensor)]
