"""A sweep by a cloud's own service, started as the command does, and watched until it is over."""

from __future__ import annotations

import os
from pathlib import Path

from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.native_sweep import NativeSweepState
from cloudtrain.runs.events import Submitted
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.submit import _submitting, documents_of
from tests.support.waiting import eventually


def begin(plan: Plan) -> History:
    """Make a folder for the sweep, and start it; no rule may refuse it."""
    native = get_provider(plan.provider).native_sweeps()
    assert [each for each in native.rules(plan) if each.is_error] == []
    request = native.render(plan)
    store = RunStore(Path(plan.context.data_dir, "sweeps"))
    locks: list[int] = []
    history = History(store.create(plan.run_id, documents_of(plan, request), _submitting(plan), locks))
    try:
        reference = native.start(plan, request, history.folder, pack_source(plan, None), None, history.record)
        history.folder.append(Submitted(ref=reference))
    finally:
        for lock in locks:
            os.close(lock)
    history.read()
    return history


def ended(provider: str, history: History) -> NativeSweepState:
    """The sweep when it is over."""
    native = get_provider(provider).native_sweeps()

    def when_over() -> NativeSweepState | None:
        state = native.observe(history.folder, history.state, history.record)
        return state if state is not None and state.has_ended else None

    found = eventually(when_over)
    assert found is not None
    return found
