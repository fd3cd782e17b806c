"""How strategies divide a step: on real ranks, on ranks without peers, and by formulas."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cloudtrain_trainer.tasks.gpt import Shape, decoder
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer.ddp_checks import shared_process_group
from tests.support.counts import Message
from tests.support.split_plans import Plan, plan, plan_alone, shards_alone

pytestmark = pytest.mark.once

Sizes = dict[tuple[str, tuple[int, ...]], int]
"""Bytes of messages by their kind and ranks."""

SMALL = Shape(vocabulary=100, context=8, width=24, layers=2, heads=4)
"""Its matrices leave a remainder between 16 ranks, and are too small for 64."""
EVEN = Shape(vocabulary=128, context=64, width=128, layers=2, heads=64)
"""64 ranks can split each of its matrices."""
STRATEGIES = ["ddp", "fsdp", "hsdp", "tp", "gpipe", "1f1b", "data by tensor", "data by stages"]


def flags_of(strategy: str, size: int) -> tuple[Shape, str]:
    """Return a model and the flags that split it over a world of this size."""
    half = size // 2
    deep = replace(SMALL, layers=size)
    return {
        "ddp": (SMALL, f"--strategy ddp --batch-size {2 * size} --accumulate 2"),
        "fsdp": (SMALL, f"--strategy fsdp --batch-size {size} --clip-norm 1"),
        "hsdp": (
            SMALL,
            f"--strategy hsdp --shard {half} --batch-size {2 * size} --accumulate 2 --amp bf16",
        ),
        "tp": (EVEN, "--strategy tp --batch-size 1 --clip-norm 1"),
        "gpipe": (deep, "--strategy pipeline --schedule gpipe --batch-size 8 --microbatches 8"),
        "1f1b": (
            deep,
            f"--strategy pipeline --batch-size {size} --microbatches {size} --clip-norm 1",
        ),
        "data by tensor": (
            EVEN,
            f"--strategy hybrid --tensor 2 --batch-size {half} --clip-norm 1",
        ),
        "data by stages": (
            SMALL,
            f"--strategy hybrid --stages 2 --batch-size {2 * size} --clip-norm 1",
        ),
    }[strategy]


def strategies_of(size: int) -> list[str]:
    """Return the strategies for a world of this size: two ranks form no groups."""
    return ["ddp", "fsdp", "tp", "gpipe", "1f1b"] if size == 2 else STRATEGIES


def save_plans() -> None:
    """Write the plans of this rank, which is one of a group."""
    with shared_process_group() as ranks:
        size = ranks.size
        plans = {name: plan(ranks, *flags_of(name, size)) for name in strategies_of(size)}
        Path(f"plans-{ranks.rank}.json").write_text(json.dumps(plans))


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_without_peers_has_the_plan_of_a_real_one(group: StartGroup, size: int) -> None:
    real = group(size, program=f"{__name__}:{save_plans.__name__}")
    assert real.wait() == [0] * size, real.output()
    for rank in range(size):
        plans = json.loads((real.folder / f"plans-{rank}.json").read_text())
        for name in strategies_of(size):
            alone = plan_alone(size, rank, *flags_of(name, size))
            assert plans[name] == json.loads(json.dumps(alone)), f"{name}, rank {rank}"


@pytest.mark.parametrize("strategy", ["single", "dp", "model-parallel --stages 2"])
def test_a_strategy_of_one_process_sends_nothing(strategy: str) -> None:
    alone = plan_alone(1, 0, SMALL, f"--strategy {strategy} --batch-size 2")
    assert alone.shards == {name: list(p.shape) for name, p in parameters(SMALL).items()}
    assert alone.messages == []


@pytest.mark.parametrize("size", [8, 16, 64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_messages_have_the_sizes_and_peers_of_the_strategy(strategy: str, size: int) -> None:
    """Ranks at the ends and at borders of groups send their common messages in one order."""
    shape, flags = flags_of(strategy, size)
    ranks: tuple[int, ...] = (0, 1, size // 2, size - 1)
    if strategy in ("tp", "gpipe"):
        ranks = (0, 1)
    elif strategy in ("data by tensor", "1f1b"):
        ranks = (0, 1, size - 1)
    plans = {rank: plan_alone(size, rank, shape, flags) for rank in ranks}

    for rank, (shards, messages, waits) in plans.items():
        sizes = Counter[tuple[str, tuple[int, ...]]]()
        for kind, number, members in messages:
            sizes[kind, members] += number
        assert sizes == sizes_of(strategy, size, rank, shards), f"rank {rank}"
        assert waits == []

    for first, second in permutations(plans, 2):
        assert of_both(plans[first], first, second) == of_both(plans[second], first, second)
        assert sent(plans[first], "send", second) == sent(plans[second], "receive", first)


def of_both(plan: Plan, *ranks: int) -> list[Message]:
    """Return the messages of groups that contain both ranks, in order."""
    return [message for message in plan.messages if {*ranks} <= {*message.ranks}]


def sent(plan: Plan, kind: str, peer: int) -> list[int]:
    return [message.size for message in plan.messages if message[::2] == (kind, (peer,))]


def sizes_of(strategy: str, size: int, rank: int, shards: Mapping[str, list[int]]) -> Sizes:
    """Return the bytes that one rank exchanges in a step, by the formulas in strategies/."""
    shape = flags_of(strategy, size)[0]
    whole = parameters(shape)
    layers = {name: p for name, p in whole.items() if name.startswith("layers.")}
    vectors = {name: p for name, p in whole.items() if p.dim() == 1}
    half = size // 2
    everyone = tuple(range(size))
    block = everyone[rank // half * half :][:half]
    pair = everyone[rank // 2 * 2 :][:2]
    in_other_block = everyone[rank % half :: half]
    in_other_pairs = everyone[rank % 2 :: 2]
    norms = 4 * len(whole)
    tokens = 4 * shape.context
    activations = tokens * shape.width

    def of_tensors(group: tuple[int, ...]) -> Sizes:
        """Each layer gathers and scatters tokens four times, embedding and head once each.

        The logits are not gathered: the loss needs three numbers per token.
        """
        exchanged = (4 * shape.layers + 2) * activations
        gradients = padded(vectors, 1)
        return {
            ("all_gather", group): exchanged,
            ("reduce_scatter", group): exchanged,
            ("all_reduce", group): 3 * tokens + gradients + norms - 4 * len(vectors),
        }

    def of_neighbours(microbatches: int, stages: tuple[int, ...] = everyone) -> Sizes:
        """An activation one way and a gradient the other for each micro-batch."""
        neighbours = {rank - 1, rank + 1} & {*stages}
        ways = [(kind, (rank,)) for kind in ("send", "receive") for rank in neighbours]
        return dict.fromkeys(ways, microbatches * activations)

    match strategy:
        case "ddp":
            return {("all_reduce", everyone): padded(whole, 1)}
        case "fsdp":
            return {
                ("all_gather", everyone): padded(whole, size) + padded(layers, size),
                ("reduce_scatter", everyone): padded(whole, size),
                ("all_reduce", everyone): norms,
            }
        case "hsdp":  # two micro-batches, in bf16
            return {
                ("all_gather", block): padded(whole, half) + padded(layers, half),
                ("reduce_scatter", block): 2 * padded(whole, half),
                ("all_reduce", in_other_block): padded(whole, half) // half,
            }
        case "tp":
            return of_tensors(everyone)
        case "gpipe":
            return of_neighbours(8)
        case "1f1b":
            return of_neighbours(size) | {("all_reduce", everyone): 4}
        case "data by tensor":
            reduced = (padded(whole, 1) + padded(vectors, 1)) // 2
            twice = (padded(layers, 1) + padded(vectors, 1) - 4 * shape.width) // 2
            return of_tensors(pair) | {
                ("all_gather", in_other_pairs): reduced + twice,
                ("reduce_scatter", in_other_pairs): reduced,
                ("all_reduce", in_other_pairs): norms,
            }
        case _:
            return of_neighbours(4, pair) | {
                ("all_reduce", in_other_pairs): 4 * sum(map(math.prod, shards.values())),
                ("all_reduce", pair): 4,
            }


def padded(tensors: Mapping[str, Tensor], ranks: int) -> int:
    """Return the bytes in float32 of tensors whose rows are filled up to a multiple of `ranks`."""
    return sum(
        4 * math.ceil(len(t) / ranks) * ranks * math.prod(t.shape[1:]) for t in tensors.values()
    )


def parameters(shape: Shape) -> dict[str, Tensor]:
    with torch.device("meta"):
        return dict(decoder(shape).named_parameters())


@pytest.mark.parametrize(
    ("strategy", "size"),
    [
        ("1f1b", 8),
        ("1f1b", 16),
        *product(["ddp", "fsdp", "hsdp", "tp", "data by tensor", "data by stages"], [8, 16, 64]),
    ],
)
def test_shards_add_up_to_each_parameter(strategy: str, size: int) -> None:
    """Ranks that split matrices evenly have the same vectors; the first and the last show them."""
    shape, flags = flags_of(strategy, size)
    held = {"ddp": 1, "hsdp": size // 2, "data by stages": 2}.get(strategy, size)
    copies = {"tp": size, "data by tensor": 2}.get(strategy, 1)
    ranks = (0, size - 1) if shape is EVEN else range(held)
    total = Counter[str]()
    for rank in ranks:
        for name, dimensions in shards_alone(size, rank, shape, flags).items():
            total[name] += math.prod(dimensions) * held // len(ranks)

    whole = parameters(shape)
    assert total == {n: p.numel() * (copies if p.dim() == 1 else 1) for n, p in whole.items()}
