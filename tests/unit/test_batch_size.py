"""The search for a batch size finds the largest that fits and the one to take, whatever the curve
is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.runs.state import RunState
from cloudtrain.spec.batch_sizes import RESOLUTION, most_trials, next_size
from cloudtrain.spec.load import spec_from_values
from cloudtrain.spec.search_space import Integers
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.shorthand import batch_size_values
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


@pytest.mark.parametrize("limit", [*range(1, 80), 255, 256, 257, 1000])
def test_search_finds_the_largest_within_a_sixteenth_and_its_trial_limit(
    limit: int,
) -> None:
    for largest in range(limit + 1):
        fitting, too_large = tried(3, 3 * limit + 2, 3 * largest)
        assert (
            len({*fitting, *too_large})
            == len(fitting) + len(too_large)
            <= most_trials(3, 3 * limit + 2)
        )
        assert max(fitting, default=0) <= 3 * largest
        assert 3 * largest - max(fitting, default=0) <= max(fitting, default=0) / RESOLUTION


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


def test_where_more_is_always_faster_the_largest_is_the_one_to_take(tmp_path: Path) -> None:
    assert best_of(search(tmp_path, lambda size: 10.0 * size, fits=300)) == (
        "succeeded",
        "288 fits, 304 does not; it is the fastest, too: 2880 samples_per_s",
        288,
    )


def test_on_a_plateau_the_smallest_size_of_it_is_the_one_to_take(tmp_path: Path) -> None:
    state = search(tmp_path, lambda size: 1000 * size / (size + 2), fits=300)
    assert best_of(state) == (
        "succeeded",
        (
            "288 fits, 304 does not; 64 is the smallest that is within 5% of the fastest: 969.7"
            " samples_per_s"
        ),
        64,
    )


def test_noise_below_the_tolerance_makes_no_size_larger(tmp_path: Path) -> None:
    noisy = {16: 1000.0, 32: 1004.0, 64: 985.0, 128: 1030.0}
    state = search(tmp_path, lambda size: noisy.get(size, 1000.0 if size > 8 else size * 100.0))
    assert state.best.batch_size == 16  # type: ignore[union-attr]


def test_where_large_batches_are_slower_again_the_largest_is_still_told(tmp_path: Path) -> None:
    assert best_of(search(tmp_path, lambda size: 1000.0 - abs(size - 64), fits=1024))[1:] == (
        (
            "1024 fits, 1088 does not; 16 is the smallest that is within 5% of the fastest: 952"
            " samples_per_s"
        ),
        16,
    )


def test_less_may_be_better(tmp_path: Path) -> None:
    state = search(
        tmp_path, lambda size: 1 + 32 / size, most=1024, goal="minimize", metric="ms_per_sample"
    )
    assert state.reason.startswith("1024 fits, the most that was asked for; 512 is the smallest")
    assert state.planned == len(state.trials) == 11 < state.wanted


def test_where_not_even_the_least_fits_the_search_fails_in_a_sentence(tmp_path: Path) -> None:
    state = search(tmp_path, float, fits=4, least=8)
    assert best_of(state) == ("failed", "not even 8 fits: out of memory", None)
    assert len(state.trials) == 1


def test_a_trial_that_fails_otherwise_ends_the_search_and_what_was_found_remains(
    tmp_path: Path,
) -> None:
    state = search(tmp_path, float, fails=lambda run: run.endswith("t003"))
    reason = "the trial of 8 failed (it was told to): whether it fits is not known"
    assert best_of(state) == ("failed", reason, 4)


def test_it_is_tried_again_as_often_as_the_section_says(tmp_path: Path) -> None:
    state = search(tmp_path, float, fails=lambda run: run.endswith("t003"), retries=1)
    assert (state.state, state.trials[3].failures) == ("succeeded", 1)


def test_a_measurement_that_is_no_number_ends_the_search(tmp_path: Path) -> None:
    assert best_of(search(tmp_path, lambda size: float("nan") if size == 4 else size)) == (
        "failed",
        "the trial of 4 reported no number as samples_per_s",
        2,
    )


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


def test_the_section_needs_no_number_of_trials() -> None:
    objective = {"metric": "samples_per_s", "goal": "maximize"}
    section = {
        "method": "batch_size",
        "space": {"batch-size": "int(1, 4096)"},
        "objective": objective,
    }
    spec, _ = spec_from_values({"name": "digits", "sweep": section}, Path("/"))
    assert spec.sweep is not None
    assert (spec.sweep.trial_count, spec.sweep.chosen_sampler) == (17, "batch_size")
