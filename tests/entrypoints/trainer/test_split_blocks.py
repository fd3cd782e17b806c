"""The blocks of a model that no task describes, as FSDP shards them."""

from __future__ import annotations

import torch
from torch import nn

from cloudtrain_trainer import partition


class Block(nn.Module):
    def __init__(self, shared: nn.Parameter | None = None) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.shared = shared


def test_the_repeated_blocks_of_a_model_are_found() -> None:
    model = nn.Module()
    model.embedding = nn.Embedding(8, 4)
    model.head = nn.Linear(4, 8)
    model.layers = nn.ModuleList(Block() for _ in range(3))
    first = Block()
    second = Block()
    last = Block()
    model.groups = nn.Sequential(
        nn.Sequential(first, second), nn.Sequential(last, nn.ReLU(), nn.ReLU())
    )
    assert list(partition.repeated_blocks(model)) == [*model.layers, first, second, *last.inside]


def test_blocks_that_share_a_parameter_are_not_separate_units() -> None:
    model = nn.Module()
    model.tied = nn.Parameter(torch.ones(4))
    model.layers = nn.ModuleList([Block(model.tied), Block(), Block()])
    assert list(partition.repeated_blocks(model)) == list(model.layers)[1:]
    one = Block()
    assert partition.repeated_blocks(nn.ModuleList([one, one])) == [], (
        "a module that is used twice is not a unit"
    )
