"""Runs on disk: one folder each, with documents written once and events appended only; state is their fold."""

from cloudtrain.runs.state import ENDED, STATES, RunState, fold
from cloudtrain.runs.store import RunFolder, RunStore

__all__ = ["ENDED", "STATES", "RunFolder", "RunState", "RunStore", "fold"]
