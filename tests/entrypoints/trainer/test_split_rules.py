"""Options of strategies that split a model and of tasks that are refused before training."""

from __future__ import annotations

import pytest

from cloudtrain_trainer.rules import Refused
from tests.entrypoints.trainer.test_rules import parse_on


@pytest.mark.parametrize(
    ("ranks", "line", "message"),
    [
        (
            2,
            "--task keras-mnist --strategy tp",
            "has no tensor-parallel plan .* use --strategy ddp or fsdp",
        ),
        (
            2,
            "--task gpt --size gpt2-124m --strategy pipeline",
            "cannot be split into stages .* use --strategy ddp",
        ),
        (
            3,
            "--task gpt --strategy tp",
            "into 4 parts .heads, columns., which 3 ranks do not divide: use 1 or 2 ranks",
        ),
        (
            8,
            "--strategy pipeline",
            "at most 4 stages, not 8: use --strategy hybrid --stages 4 or less",
        ),
        (4, "--strategy hybrid", "choose it with --tensor N .* or --stages N"),
        (
            4,
            "--strategy hybrid --tensor 4",
            "less than the 4 ranks, .* or --strategy tp for all ranks",
        ),
        (
            2,
            "--strategy hybrid --stages 3",
            "--stages 3 needs as many ranks, and there are 2: start more",
        ),
        (4, "--strategy hsdp --shard 3", "--shard 3 does not divide the 4 ranks"),
        (4, "--strategy hsdp", "one group of all 4 ranks, which is --strategy fsdp"),
        (
            2,
            "--task keras-mnist --strategy fsdp",
            "FSDP cannot shard the parameters .*: use --strategy ddp",
        ),
        (
            2,
            "--strategy pipeline --batch-size 30",
            "a batch of 30 cannot .* 4 micro-batches .* use --batch-size 28",
        ),
        (
            2,
            "--strategy pipeline --microbatches 1",
            "1 micro-batches do not fill 2 stages .* --schedule gpipe",
        ),
        (2, "--tensor 2", "--tensor is for --strategy hybrid, not ddp: leave it out"),
        (2, "--strategy fsdp --amp fp16", "use --amp bf16"),
        (
            2,
            "--task gpt --strategy tp --recompute blocks --compile",
            "not offered with --strategy tp and --recompute",
        ),
        (2, "--strategy pipeline --compile", "--compile is not offered with --strategy pipeline"),
        (1, "--size tiny", "--size is an option of --task gpt, not of this one"),
        (1, "--task gpt --size huge", "argument --size: expected tiny or small"),
    ],
)
def test_invalid_combinations_are_refused_with_a_hint(
    ranks: int, line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=message):
        parse_on(ranks, line, monkeypatch)


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (1, "--strategy model-parallel --stages 4"),
        (2, "--strategy pipeline --schedule gpipe --microbatches 1"),
        (4, "--strategy hybrid --tensor 2"),
        (2, "--task gpt --strategy tp --recompute blocks"),
        (2, "--task gpt --strategy fsdp --recompute blocks --compile"),
        (8, "--task gpt --strategy hybrid --stages 4"),
        (8, "--task gpt --size gpt2-124m --tied no --strategy hybrid --tensor 4"),
        (6, "--model mine:factory --strategy tp"),
        (2, "--strategy tp --optimizer mine:factory"),
    ],
)
def test_valid_combinations_are_accepted(
    ranks: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_on(ranks, line, monkeypatch)


def test_hsdp_shards_within_a_node_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_on(4, "--strategy hsdp", monkeypatch, per_node=2).shard is None
