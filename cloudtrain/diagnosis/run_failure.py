"""Root cause of a run's failure, by its launcher, its platform's reason, and the logs of all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.diagnosis.failure import Consequence, Diagnosis, diagnose_search
from cloudtrain.diagnosis.log_text import Evidence, evidence_of
from cloudtrain.diagnosis.search import Search
from cloudtrain.runs.failure import explain, failed_process
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.record import terms_of
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Cause, Ended


def diagnose_run(folder: RunFolder, state: RunState) -> Diagnosis:
    """Return why a run failed. Raise StorageError if its events or logs cannot be read.

    The launcher's first error wins over the log, unless it is a consequence or an end without a
    message: a killed process, an exit code.
    """
    cause = state.error
    ended = folder.last_event(Ended)
    if was_refused(state) and ended is not None:
        return _of_refusal(
            diagnose_search(Search().read(run_evidence(folder, state))), state, ended.hint
        )
    by_launcher = diagnose_search(Search().read(_of_cause(cause))) if cause else None
    whole = diagnose_search(Search().read(run_evidence(folder, state)))
    if cause is None or by_launcher is None:
        says_nothing = whole.confidence == "none" and not whole.evidence and not whole.last_lines
        return replace(whole, cause=state.reason) if says_nothing and state.reason else whole
    if by_launcher.confidence == "high":
        diagnosis = replace(by_launcher, consequences=_without(whole, by_launcher))
    elif cause.traceback and not cause.consequence and by_launcher.rule is None:
        diagnosis = replace(
            whole,
            rule=None,
            confidence="none",
            evidence=(_line_of(cause),),
            remedy="",
            last_lines=(),
        )
        diagnosis = replace(diagnosis, cause=f"{explain(state)}, which no rule knows")
    else:
        diagnosis = whole
    if cause.hint and not _says_more(diagnosis, by_launcher):
        return replace(diagnosis, remedy=cause.hint)
    return diagnosis


def diagnose_limit(folder: RunFolder, state: RunState) -> Diagnosis | None:
    """Return the limit that stopped a run, with a remedy; None for another reason."""
    diagnosis = diagnose_search(
        Search().read([Evidence(state.reason[:MAX_REASON_CHARS], "platform")])
    )
    if "limits." not in state.reason or diagnosis.rule is None:
        return None
    if diagnosis.rule.name != "time-is-up":
        return diagnosis
    limit = (
        "limits.max_wait"
        if "limits.max_wait" in state.reason
        else terms_of(folder).limit or "limits.max_runtime"
    )
    step = state.checkpoint.step if state.checkpoint else None
    restart = "no checkpoint was told of, so that a rerun begins at the start"
    if step is not None:
        restart = f"cloudtrain rerun continues from the checkpoint of step {step}"
    return replace(diagnosis, remedy=f"raise {limit}; {restart}")


def was_refused(state: RunState) -> bool:
    """Return True if it failed before it became a job: without a log or costs."""
    return state.state == "failed" and state.ref is None and not state.started


def _of_refusal(diagnosis: Diagnosis, state: RunState, hint: str) -> Diagnosis:
    """Return the cause of a refused submit: a missing right is the client's, not the job's."""
    is_known = diagnosis.rule is not None and diagnosis.rule.name not in _RIGHTS_OF_JOBS
    remedy = hint or (diagnosis.remedy if is_known else "")
    if is_known:
        return replace(diagnosis, remedy=remedy)
    return Diagnosis(cause=state.reason, confidence="high" if hint else "none", remedy=remedy)


_RIGHTS_OF_JOBS = ("aws-denied", "azure-denied", "azure-storage-denied")
"""Rules about missing rights of the job's role or identity."""


def _says_more(diagnosis: Diagnosis, by_launcher: Diagnosis) -> bool:
    """Return True if the log shows, with certainty, another cause than the launcher's error."""
    return diagnosis.confidence == "high" and diagnosis.rule is not by_launcher.rule


def _without(whole: Diagnosis, root: Diagnosis) -> tuple[Consequence, ...]:
    return tuple(
        consequence for consequence in whole.consequences if consequence.rule is not root.rule
    )


def run_evidence(folder: RunFolder, state: RunState) -> Iterator[Evidence]:
    """Yield evidence of a run's end: the launcher's error, the platform's reason, logs."""
    if state.error:
        yield from _of_cause(state.error)
    ended = folder.last_event(Ended)
    for reason in (ended.platform_reason if ended else "", state.reason):
        if reason and not (state.error and reason == f"{failed_process(state.error)} failed"):
            yield Evidence(reason[:MAX_REASON_CHARS], "platform")
    numbers = Counter[int]()
    for line in LogReader(folder).read_all():
        numbers[line.node] += 1
        yield from evidence_of(
            line.text, f"node-{line.node}.log", numbers[line.node], line.rank, line.node
        )


MAX_REASON_CHARS = 4_000


def _of_cause(cause: Cause) -> list[Evidence]:
    return [_line_of(cause)]


def _line_of(cause: Cause) -> Evidence:
    text = f"{cause.exception}: {cause.message}".strip().removesuffix(":")[:MAX_REASON_CHARS]
    source, line = (cause.file, cause.line) if cause.file else ("launcher", 0)
    return Evidence(text, source, line, cause.rank if cause.rank >= 0 else None, cause.node)
