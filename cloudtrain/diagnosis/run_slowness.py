"""Verdict on a slow run, by its step times and the setup in its plan."""

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
"""Least duration of training for a verdict at the end of a run."""

TOLD_FROM_CONFIDENCE = 0.8
TOLD_FROM_SHARE = 0.2
"""Minimum confidence and share of the time for a verdict at the end of a run."""


def diagnose_slowness(folder: RunFolder, state: RunState) -> Slowness:
    """Return the verdict on a run until now. Ignore a plan that cannot be read."""
    return why_slow(state.step_times, setup_of(folder, state), state.utilization)


def told_at_the_end(folder: RunFolder, state: RunState) -> Slowness | None:
    """Return the verdict if a run was slow for one clear reason, and long enough; else None."""
    wall = max((sums.wall for sums in state.step_times.totals().values()), default=0.0)
    if wall < TOLD_FROM_SECONDS:
        return None
    slowness = diagnose_slowness(folder, state)
    clear = slowness.confidence >= TOLD_FROM_CONFIDENCE and slowness.share >= TOLD_FROM_SHARE
    return slowness if slowness.is_slow and clear else None


def setup_of(folder: RunFolder, state: RunState) -> Setup:
    """Return the setup of a run, with defaults for unknown values."""
    spec: Mapping[str, Any] = {}
    with suppress(StorageError):
        spec = RunRecord(folder).spec
    ranks = max(1, len(state.step_times.totals()), state.nodes * state.processes)
    return setup_of_job(
        spec, ranks=ranks, nodes=max(1, state.nodes), has_gpus=bool(state.utilization.gpus)
    )


def setup_of_job(spec: Mapping[str, Any], *, ranks: int, nodes: int, has_gpus: bool) -> Setup:
    """Return the setup of a job. `spec`: as a plan writes it, without defaults."""
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
    """Return the value of an option on a command line; empty if it is missing."""
    for word, after in zip(argv, [*argv, ""][1:], strict=True):
        if word == name:
            return after
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() else 1
