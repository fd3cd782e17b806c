"""GPU work and messages of a training step, counted without a GPU: kernels, bytes, waits."""

from __future__ import annotations

import pytest

from tests.support.counted_steps import count_ours, count_rank
from tests.support.decoder import GPT2, SMALL, Decoder

pytestmark = pytest.mark.once

LAUNCHES = 517
GIGABYTES = 75.6
"""Of our step of GPT-2 124M on 16 sequences of 1,024 tokens, in eager mode: lower them with what
lowers the counts. A compiled step needs fewer than one written by hand (docs/concepts).
"""
SHORT = GPT2._replace(layers=2)


def test_a_step_of_gpt2_needs_no_more_than_before() -> None:
    counts = count_ours(16)
    assert counts.waits == []
    assert counts.launches <= LAUNCHES
    assert counts.other_bytes <= GIGABYTES * 1e9
    products_of_a_layer = 4 * 3  # four matrices; their products, and both gradients
    assert counts.by_name["mm"] == 12 * products_of_a_layer + 3, "and the head's"


def test_a_further_micro_batch_adds_forward_and_backward_pass_only() -> None:
    one = count_ours(16, "--accumulate", "1", shape=SHORT)
    two = count_ours(32, "--accumulate", "2", shape=SHORT)
    assert two.waits == []
    assert two.by_name["_fused_adamw_"] == one.by_name["_fused_adamw_"]
    assert two.by_name["mm"] == 2 * one.by_name["mm"]


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (8, 5), (64, 63)])
def test_ranks_sum_their_gradients_once_per_step(size: int, rank: int) -> None:
    """Also with accumulation steps, and no rank waits for anything else."""
    counts = count_rank(size, rank, f"--batch-size {2 * size} --accumulate 2", SMALL)
    gradients = sum(4 * parameter.numel() for parameter in Decoder(SMALL).parameters())
    assert {message.kind for message in counts.messages} == {"all_reduce"}
    assert {message.ranks for message in counts.messages} == {tuple(range(size))}
    assert sum(message.size for message in counts.messages) == gradients
    assert counts.waits == []


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_one_process_sends_nothing(strategy: str) -> None:
    assert count_ours(2, "--strategy", strategy, shape=SMALL).messages == []
