"""The root cause of a run's failure: by what its launcher reported, its platform's reason, and all nodes' logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.diagnosis.failure import Consequence, Diagnosis, diagnose_search
from cloudtrain.diagnosis.log_text import Evidence, evidence_of
from cloudtrain.diagnosis.search import Search
from cloudtrain.runs.events import Cause, Ended
from cloudtrain.runs.failure import explain, failed_process
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.state import RunState


def diagnose_run(folder: RunFolder, state: RunState) -> Diagnosis:
    """Why a run failed. StorageError when its events or logs cannot be read.

    What its launcher named as the first error counts before what the log says, unless it is a mere consequence, or an
    end without words: a killed process, an exit code.
    """
    cause = state.error
    by_launcher = diagnose_search(Search().read(_of_cause(cause))) if cause else None
    whole = diagnose_search(Search().read(run_evidence(folder, state)))
    if cause is None or by_launcher is None:
        return whole
    if by_launcher.confidence == "high":
        found = replace(by_launcher, consequences=_without(whole, by_launcher))
    elif cause.traceback and not cause.consequence and by_launcher.rule is None:
        found = replace(whole, rule=None, confidence="none", evidence=(_line_of(cause),), remedy="", last_lines=())
        found = replace(found, cause=f"{explain(state)}, which no rule knows")
    else:
        found = whole
    return replace(found, remedy=cause.hint) if cause.hint and not _says_more(found, by_launcher) else found


def _says_more(found: Diagnosis, by_launcher: Diagnosis) -> bool:
    """Whether the log named another cause, with certainty, than the error that the launcher's hint is about."""
    return found.confidence == "high" and found.rule is not by_launcher.rule


def _without(whole: Diagnosis, root: Diagnosis) -> tuple[Consequence, ...]:
    return tuple(each for each in whole.consequences if each.rule is not root.rule)


def run_evidence(folder: RunFolder, state: RunState) -> Iterator[Evidence]:
    """Everything that says something about a run's end: the launcher's error, the platform's reason, all log lines."""
    if state.error:
        yield from _of_cause(state.error)
    ended = folder.last_event(Ended)
    for reason in (ended.platform_reason if ended else "", state.reason):
        if reason and not (state.error and reason == f"{failed_process(state.error)} failed"):
            yield Evidence(reason[:MAX_REASON_CHARS], "platform")
    numbers = Counter[int]()
    for line in LogReader(folder).read_all():
        numbers[line.node] += 1
        yield from evidence_of(line.text, f"node-{line.node}.log", numbers[line.node], line.rank, line.node)


MAX_REASON_CHARS = 4_000


def _of_cause(cause: Cause) -> list[Evidence]:
    return [_line_of(cause)]


def _line_of(cause: Cause) -> Evidence:
    text = f"{cause.exception}: {cause.message}".strip().removesuffix(":")[:MAX_REASON_CHARS]
    source, line = (cause.file, cause.line) if cause.file else ("launcher", 0)
    return Evidence(text, source, line, cause.rank if cause.rank >= 0 else None, cause.node)
