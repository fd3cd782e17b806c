"""The layers that `--recompute` computes twice."""

from __future__ import annotations

from torch import nn

from cloudtrain_trainer.recompute import repeated_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


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
    assert list(repeated_blocks(model)) == [*model.layers, first, second, *last.inside]


def test_a_block_that_is_used_twice_is_found_once() -> None:
    one = Block()
    other = Block()
    assert list(repeated_blocks(nn.ModuleList([one, one, other]))) == [one, other]
