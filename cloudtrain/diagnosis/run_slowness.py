"""Why a run is slow: its step times, and what its plan says of its setup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cloudtrain.diagnosis.slowness import Slowness, why_slow
from cloudtrain.diagnosis.slowness_words import Setup
from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState

TOLD_FROM_SECONDS = 60.0
"""The report at the end of a run names why it was slow if it has trained for so long, after its
first steps.
"""

TOLD_FROM_CONFIDENCE = 0.8
TOLD_FROM_SHARE = 0.2
"""And if the verdict is as sure, and the cause took as much of the time."""


def diagnose_slowness(folder: RunFolder, state: RunState) -> Slowness:
    """The verdict on a run, or on what there is of it so far. A plan that cannot be read counts as
    none.
    """
    return why_slow(state.step_times, setup_of(folder, state), state.utilization)


def told_at_the_end(folder: RunFolder, state: RunState) -> Slowness | None:
    """The verdict on a run that was slow for one clear reason, and for long enough to matter; else
    None.
    """
    wall = max((sums.wall for sums in state.step_times.totals().values()), default=0.0)
    if wall < TOLD_FROM_SECONDS:
        return None
    slowness = diagnose_slowness(folder, state)
    clear = slowness.confidence >= TOLD_FROM_CONFIDENCE and slowness.share >= TOLD_FROM_SHARE
    return slowness if slowness.is_slow and clear else None


def setup_of(folder: RunFolder, state: RunState) -> Setup:
    """What of a run the remedies depend on; defaults for what is not known."""
    spec: Mapping[str, Any] = {}
    with suppress(StorageError):
        spec = RunRecord(folder).spec
    ranks = max(1, len(state.step_times.totals()), state.nodes * state.processes)
    return setup_of_job(
        spec, ranks=ranks, nodes=max(1, state.nodes), has_gpus=bool(state.utilization.gpus)
    )


def setup_of_job(spec: Mapping[str, Any], *, ranks: int, nodes: int, has_gpus: bool) -> Setup:
    """What of a job the remedies depend on. `spec`: as a plan writes it, defaults left out."""
    argv = (spec.get("args") or {}).get("argv") or []
    return Setup(
        ranks=ranks,
        nodes=nodes,
        has_gpus=has_gpus,
        trainer=not spec.get("entrypoint"),
        strategy=_option(argv, "--strategy") or "ddp",
        accumulate=_whole(_option(argv, "--accumulate")),
        checkpoint_every=(spec.get("checkpoints") or {}).get("every"),
    )


def _option(argv: Sequence[str], name: str) -> str:
    """The value of an option on a command line; empty if it is not there."""
    for word, after in zip(argv, [*argv, ""][1:], strict=True):
        if word == name:
            return after
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() else 1
