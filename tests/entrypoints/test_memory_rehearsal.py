"""A rehearsal without values says what a real step takes; what fits follows, and `--strategy auto`
from that.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtrain_trainer import rules
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.memory import auto, device, plans, scratch
from cloudtrain_trainer.memory import script as script_program
from cloudtrain_trainer.memory.alone import World
from cloudtrain_trainer.memory.rehearsal import Held, rehearse
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from tests.entrypoints.loss_curves import one_process
from tests.support.step_memory import estimated, measured

MIB = 1 << 20
ABOVE = 1.15
BELOW = 0.95
"""The bounds of an estimate; tests/bench/bench_memory.py holds every task, strategy and 21 other
models to them.
"""


@pytest.mark.parametrize(
    "flags",
    [
        ["--task", "digits"],
        ["--task", "gpt", "--recompute", "blocks", "--amp", "bf16", "--accumulate", "2"],
        ["--task", "resnet50", "--size=tiny", "--data=synthetic", "--strategy", "fsdp"],
        ["--task", "tests.bench.memory_models:task_bidirectional"],
    ],
    ids=["convolutions", "recomputed", "sharded", "recurrent"],
)
def test_a_rehearsal_takes_what_the_step_takes(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    flags = [*flags, "--batch-size", "16"]
    assert BELOW < estimated(flags, World(1, 1)) / measured(flags, one_process()) < ABOVE


@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"),
    [(17, 33, 8, 40), (64, 3, 512, 40), (5, 8, 400, 256), (40, 16, 64, 128)],
)
def test_what_an_lstm_keeps_is_what_its_kernel_returns(
    steps: int, batch: int, width: int, hidden: int
) -> None:
    weights = [torch.zeros(4 * hidden, size) for size in (width, hidden)]
    given = [
        torch.zeros(steps, batch, width),
        *weights,
        *[torch.zeros(4 * hidden)] * 2,
        *[torch.zeros(batch, hidden)] * 2,
    ]
    layer = torch.ops.aten.mkldnn_rnn_layer.default
    kept = layer(*given, False, [], 2, hidden, 1, True, False, False, True)[
        3
    ]  # mode 2: LSTM; the last: in training
    found = scratch.lstm_workspace(steps, batch, width, hidden)
    assert found == pytest.approx(kept.numel() * kept.element_size(), rel=0.05), (
        "another CPU may align it otherwise"
    )


def of_four(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = parse(["--task", "digits", "--batch-size", "16", *flags])
    return rehearse(options, World(4, 4), like_gpu=True, amp="no", block=512)


def test_strategies_share_what_they_say_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = of_four(["--strategy", "ddp"], monkeypatch)
    shared = of_four(["--strategy", "fsdp"], monkeypatch)
    staged = of_four(["--strategy", "pipeline"], monkeypatch)
    for part in ("parameters", "gradients"):
        assert getattr(shared, part) == pytest.approx(getattr(copied, part) / 4, rel=0.05)
    assert staged.parameters < copied.parameters
    assert shared.peak < copied.peak


def test_nothing_is_drawn_and_no_group_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    of_four(["--strategy", "ddp"], monkeypatch)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.distributed.is_initialized()


class Measures:
    """A model whose activations are 1 GiB per sample; parameters, gradients and state 8 GiB, which
    fsdp divides.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.whole = list[str]()

    def __call__(self, options: Options, limit: int) -> Held:
        assert options.batch_size
        samples = options.batch_size // self.ranks // options.accumulate
        fixed = 8 // (self.ranks if options.strategy == "fsdp" else 1)
        each = {"none": 8, "selective": 4, "blocks": 2}[options.recompute] / 8
        peak = int((fixed + each * samples) * device.GIB)
        if limit and peak > limit:
            raise device.Exceeded
        self.whole.append(f"{options.strategy} {options.accumulate} {options.recompute}")
        return Held(peak, fixed * device.GIB // 4, 0, 0)


def chosen(
    gib: int, monkeypatch: pytest.MonkeyPatch, *flags: str, ranks: int = 4
) -> tuple[str, bool]:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    options = parse(["--task", "gpt", "--batch-size", "64", "--strategy", "auto", *flags])
    search = plans.Search(Measures(ranks), device.Device(gib * device.GIB, "A100"), ranks)
    plan, fits = search.cheapest(options, ranks)
    return plan.flags, fits


@pytest.mark.parametrize(
    ("gib", "expected"),
    [
        (80, ("--strategy ddp", True)),
        (25, ("--strategy ddp --accumulate 2", True)),
        (13, ("--strategy ddp --accumulate 16", True)),
        (9, ("--strategy fsdp --accumulate 4", True)),
        (1, ("--strategy fsdp --accumulate 16 --recompute blocks", False)),
    ],
)
def test_auto_takes_the_cheapest_plan_that_fits(
    gib: int, expected: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(gib, monkeypatch) == expected


def test_what_holds_too_much_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = parse(["--task", "gpt", "--batch-size", "64", "--strategy", "auto"])
    measures = Measures(4)
    plans.Search(measures, device.Device(9 * device.GIB, "A100"), 4).cheapest(options, 4)
    assert measures.whole == [
        "fsdp 16 none",
        "fsdp 4 none",
    ]  # ddp does not fit, nor does fsdp in larger micro-batches


def test_a_rehearsal_stops_at_its_limit_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_four(["--strategy", "fsdp"], monkeypatch)
    options = parse(["--task", "digits", "--batch-size", "16", "--strategy", "fsdp"])
    with pytest.raises(device.Exceeded):
        rehearse(
            options, World(4, 4), like_gpu=True, amp="no", block=512, limit=2 * whole.parameters
        )
    assert not torch.distributed.is_initialized()
    assert (
        rehearse(options, World(4, 4), like_gpu=True, amp="no", block=512, limit=whole.peak)
        == whole
    )


def test_auto_keeps_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(80, monkeypatch, "--accumulate", "4", "--recompute", "selective") == (
        "--strategy ddp --accumulate 4 --recompute selective",
        True,
    )
    assert chosen(80, monkeypatch, "--optimizer", "adafactor") == ("--strategy ddp", True)
    assert chosen(12, monkeypatch, ranks=1) == ("--strategy single --accumulate 64", True)


def test_memory_that_is_not_known_says_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.verdict(device.needed(5 * device.GIB, "A100", 2), 0) == ""
    assert chosen(0, monkeypatch) == ("--strategy ddp", True)


def test_gpus_have_less_than_their_name_says_and_old_ones_no_bf16() -> None:
    assert 14 < device.usable("T4", 16) / device.GIB < 15
    assert device.usable("L40S", 44.7) / device.GIB > 43  # as CUDA reports it already
    assert [device.precision("auto", gpu) for gpu in ("A100", "V100", "")] == ["bf16", "no", "no"]


def test_the_interval_is_wider_on_a_gpu_and_holds_its_libraries() -> None:
    on_gpu, on_cpu = (device.needed(10 * device.GIB, gpu, 2) for gpu in ("A100", ""))
    assert on_gpu.low < on_gpu.expected < on_gpu.high
    assert on_gpu.high - on_gpu.low > on_cpu.high - on_cpu.low
    assert on_gpu.low > 0.95 * 10 * device.GIB


def test_all_ranks_take_the_plan_of_rank_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = parse(["--task", "digits", "--strategy", "auto", "--batch-size", "8"])
    taken = auto.choose(
        options, one_process(), ["--task", "digits", "--strategy", "auto", "--batch-size", "8"]
    )
    assert (taken.strategy, taken.recompute) == ("single", "none")
    assert "--strategy auto: --strategy single" in capfd.readouterr().out
    assert replace(taken, strategy="auto", accumulate=1) == options


def test_a_model_that_cannot_be_rehearsed_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_ask", lambda *_: {"error": "ValueError: no"})
    options = parse(["--strategy", "auto"])
    with pytest.raises(rules.Refused, match="could not find a plan: ValueError: no"):
        auto.choose(options, one_process(), [])


SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
assert dist.get_world_size() == 2
model = DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    try:
        model(torch.ones(8, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    except Exception:
        pass
"""


def run_script(text: str, folder: Path) -> dict[str, Any]:
    """In a process of its own, since it changes torch."""
    import subprocess

    path = folder / "train.py"
    root = Path(auto.__file__).parents[2]
    path.write_text(text)
    request = json.dumps(
        {"path": str(path), "argv": [], "ranks": 2, "per_node": 2, "gpu": "A100", "gpu_gib": 80}
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "job")))}
    done = subprocess.run(
        [sys.executable, "-m", script_program.__name__, request],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_any_script_is_measured_by_its_first_steps_and_ended(tmp_path: Path) -> None:
    found = run_script(SCRIPT, tmp_path)
    held = found["plan"]["held"]
    assert (held["parameters"], held["gradients"]) == (4 * MIB, 4 * MIB)
    assert held["optimizer"] == pytest.approx(8 * MIB, rel=0.01)
    assert (
        20 * MIB <= held["peak"] < 30 * MIB
    )  # gradients twice: DDP's buckets, and what AdamW computes with
    assert found["fits"]


def test_a_script_that_ends_without_a_step_says_so(tmp_path: Path) -> None:
    assert "without a step of an optimizer" in run_script("print('hello')", tmp_path)["error"]
    assert "ValueError: no data" in run_script("raise ValueError('no data')", tmp_path)["error"]


def test_a_rank_has_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain_trainer import hardware

    ranks: Ranks = one_process()
    whole = hardware.memory_per_rank(ranks.device, 1)
    assert 0 < hardware.memory_per_rank(ranks.device, 4) < whole
    assert [
        hardware.gpu_model(name) for name in ("NVIDIA A100-SXM4-80GB", "Tesla T4", "Other")
    ] == [
        "A100",
        "T4",
        "Other",
    ]
