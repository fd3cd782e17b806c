"""The search for a batch size finds the largest that fits and the one to take, whatever the curve
is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.runs.state import RunState
from cloudtrain.spec.batch_sizes import RESOLUTION, most_trials, next_size
from cloudtrain.spec.search_space import Integers
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.planning import batch_size_values
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain.sweeps.trials import is_too_large
from cloudtrain_launcher.events import Cause
from tests.support.function_trials import FunctionTrials


def tried(least: int, most: int, largest: int) -> tuple[list[int], list[int]]:
    """Return the sizes that fit and the other ones, in order, for this capacity in samples."""
    fitting: list[int] = []
    too_large: list[int] = []
    while (size := next_size(least, most, fitting, too_large)) is not None:
        (fitting if size <= largest else too_large).append(size)
    return fitting, too_large


def test_sizes_are_doubled_until_one_does_not_fit_then_halved_in_between() -> None:
    assert tried(1, 4096, 300) == ([1, 2, 4, 8, 16, 32, 64, 128, 256, 288], [512, 384, 320, 304])
    assert tried(8, 100, 1000) == ([8, 16, 32, 64, 96], [])
    assert tried(24, 4096, 100) == ([24, 48, 96], [192, 144, 120])
    assert tried(4, 64, 3) == ([], [4])


def test_a_search_finds_the_largest_size_within_a_sixteenth_and_its_limit() -> None:
    for limit in (*range(1, 40), 255, 256, 257):
        for largest in range(limit + 1):
            fitting, too_large = tried(3, 3 * limit + 2, 3 * largest)
            sizes = [*fitting, *too_large]
            assert len(set(sizes)) == len(sizes) <= most_trials(3, 3 * limit + 2)
            most = max(fitting, default=0)
            assert 0 <= 3 * largest - most <= most / RESOLUTION


def search(
    root: Path, rate: Callable[[int], float], fits: int = 10**9, most: int = 4096, **values: Any
) -> SweepState:
    """A search over 1 to `most`, whose trials report `rate` of their size; sizes above `fits` are
    too large.
    """
    least = values.pop("least", 1)
    fails = values.pop("fails", lambda _: False)
    definition = Definition(
        **{
            "sweep_id": "digits-1",
            "name": "digits",
            "provider": "local",
            "metric": "samples_per_s",
            "goal": "maximize",
            "space": {"batch-size": Integers(least, most)},
            "sampler": "batch_size",
            "trials": most_trials(least, most),
            **values,
        }
    )
    folder = SweepFolder.create(root, definition, {"spec.yaml": "", "plan.json": "{}"})
    trials = FunctionTrials(
        folder,
        lambda values, _: rate(int(values["batch-size"])),
        fails=fails,
        too_large=lambda values: int(values["batch-size"]) > fits,
    )
    return drive(folder, trials, pause=lambda: None)


def best_of(state: SweepState) -> tuple[str, str, int | None]:
    return state.state, state.reason, state.best.batch_size if state.best else None


@pytest.mark.parametrize(
    ("rate", "options", "words", "size"),
    [
        (lambda size: 10.0 * size, {"fits": 300}, "288 fits, 304 does not", 288),
        (lambda size: 1000 * size / (size + 2), {"fits": 300}, "within 5% of the fastest", 64),
        (lambda size: 1000.0 - abs(size - 64), {"fits": 1024}, "1024 fits, 1088 does not", 16),
        (lambda size: {16: 1e3, 32: 1004.0, 64: 985.0}.get(size, size * 50.0), {"most": 64},
         "64 fits, the most", 16),
    ],
    ids=["more is faster", "a plateau", "large ones are slower", "noise"],
)  # fmt: skip
def test_the_smallest_size_that_is_about_as_fast_is_the_best(
    rate: Callable[[int], float], options: dict[str, Any], words: str, size: int, tmp_path: Path
) -> None:
    state, reason, best = best_of(search(tmp_path, rate, **options))
    assert (state, best) == ("succeeded", size)
    assert words in reason


def test_less_may_be_better(tmp_path: Path) -> None:
    state = search(
        tmp_path, lambda size: 1 + 32 / size, most=1024, goal="minimize", metric="ms_per_sample"
    )
    assert best_of(state)[2] == 512
    assert state.planned == len(state.trials) == 11 < state.wanted


@pytest.mark.parametrize(
    ("rate", "options", "words", "size"),
    [
        (float, {"fits": 4, "least": 8}, "not even 8 fits: out of memory", None),
        (float, {"fails": lambda run: run.endswith("t003")}, "the trial of 8 failed", 4),
        (lambda size: math.nan if size == 4 else size, {}, "the trial of 4 reported no number", 2),
    ],
    ids=["not even the smallest fits", "another failure", "no number"],
)
def test_a_search_that_cannot_continue_fails_with_what_it_found(
    rate: Callable[[int], float], options: dict[str, Any], words: str, size: int, tmp_path: Path
) -> None:
    state, reason, best = best_of(search(tmp_path, rate, **options))
    assert (state, best) == ("failed", size)
    assert words in reason


def test_it_is_tried_again_as_often_as_the_section_says(tmp_path: Path) -> None:
    state = search(tmp_path, float, fails=lambda run: run.endswith("t003"), retries=1)
    assert (state.state, state.trials[3].failures) == ("succeeded", 1)


def test_a_budget_that_is_spent_ends_it_with_what_was_found(tmp_path: Path) -> None:
    state = search(tmp_path, float, budget=Caps(usd=4.0), trial_cap=Caps(usd=1.0))
    assert best_of(state)[0] == "succeeded"
    assert state.reason.startswith("0.00 of 4.00 USD are left, a trial may take 1.00; 8 fits")


def test_it_takes_no_more_trials(tmp_path: Path) -> None:
    search(tmp_path, float, most=4)
    with pytest.raises(UsageError, match="ends when the largest batch size is found"):
        Sweep(SweepFolder(tmp_path / "sweeps" / "digits-1")).plan_extension(5)


def failed(exception: str, message: str) -> RunState:
    return RunState(
        run_id="a", error=Cause(rank=0, node=0, time=1.0, exception=exception, message=message)
    )


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("OutOfMemory", "out of memory: CUDA out of memory. This batch does not fit"),
        ("MemoryError", ""),
        (
            "RuntimeError",
            (
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory:"
                " you tried"
            ),
        ),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("RuntimeError", "NCCL error in: a.cpp:77, Failed to CUDA calloc 6291456 bytes"),
        ("RuntimeError", "DataLoader worker (pid 71) is killed by signal: Killed. "),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."),
        ("ResourceExhaustedError", "{{function_node}} OOM when allocating tensor with shape[8]"),
        ("_ArrayMemoryError", "Unable to allocate 8. GiB for an array with shape (8,)"),
        ("SIGKILL", "was killed by SIGKILL: out of host memory"),
        ("exit", "out of host memory: its container reached the limit of 2 GiB"),
        (
            "exit",
            (
                "AlgorithmError: Please use an instance type with more memory, or reduce the size"
                " of the data"
            ),
        ),
        (
            "Refused",
            "refused: --batch-size 2048 is more than the 1437 training samples: use 1437 or less",
        ),
    ],
)
def test_a_batch_that_is_too_large_is_known_by_all_its_disguises(
    exception: str, message: str
) -> None:
    assert is_too_large(failed(exception, message))


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("SIGKILL", "was killed by SIGKILL (out of host memory?)"),
        ("ValueError", "batch_size must be a multiple of 8"),
        ("RuntimeError", "Connection closed by peer"),
        (
            "Refused",
            (
                "refused: --batch-size 2 leaves some of 4 ranks x 1 accumulation steps empty: use"
                " at least 4"
            ),
        ),
    ],
)
def test_other_failures_are_none_of_the_batch(exception: str, message: str) -> None:
    assert not is_too_large(failed(exception, message))


def test_the_command_line_knows_the_argument_and_its_least_value() -> None:
    job = {"resources": {"nodes": 2, "processes": 4}, "args": {"accumulate": 2}}
    assert batch_size_values({}, job) == {
        "objective": {"metric": "samples_per_s", "goal": "maximize"},
        "space": {"args.batch-size": "int(16, 65536)"},
        "method": "batch_size",
    }
    program = {"entrypoint": "train.py", "args": {"lr": 0.1, "batch_size": 8}}
    assert batch_size_values({}, program)["space"] == {"args.batch_size": "int(1, 65536)"}
    assert batch_size_values({"args.bs": "int(8, 64)"}, program)["space"] == {
        "args.bs": "int(8, 64)"
    }
    with pytest.raises(UsageError, match="which argument is the batch size"):
        batch_size_values({}, {"entrypoint": "train.py", "args": {"lr": 0.1}})
