"""Root cause of a failure: the most likely candidate of a log or of a run, explained by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from cloudtrain.diagnosis.candidates import (
    BARE_EXCEPTION,
    CONSEQUENCE,
    GROUP,
    LINE_FROM_OUTSIDE,
    UNKNOWN_LINE,
    Candidate,
    Consequence,
    Raised,
)
from cloudtrain.diagnosis.left_out import remedy_of_left_out
from cloudtrain.diagnosis.log_text import (
    HEAD_BYTES,
    TAIL_BYTES,
    Evidence,
    evidence_of,
    left_out_note,
)
from cloudtrain.diagnosis.places import remedy_of_place
from cloudtrain.diagnosis.rule import Restart, Rule
from cloudtrain.diagnosis.rules import rule_of, with_signal_name
from cloudtrain.diagnosis.search import Search, shape
from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.record import RunRecord, terms_of
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore, summaries
from cloudtrain_wire.causes import one_line, process_name
from cloudtrain_wire.events import Cause, Ended

MAX_CONSEQUENCES = 6
MAX_EVIDENCE = 3
MAX_HEADLINE = 1_000

BytesRead = Callable[[int, int], None]
"""Receiver of the bytes that were read and of all bytes to read."""

Confidence = Literal["high", "low", "none"]
"""Confidence of a diagnosis.

`high`: a pattern names the cause; `low`: only a symptom, a consequence, the place of an exception,
or words that may have another cause, too; `none`: no rule.
"""

MAX_LINES_OF_SUCCESS = 50_000
"""Maximum lines to read of the last successful run of a job."""

_RIGHTS_OF_JOBS = (
    "aws-denied",
    "azure-denied",
    "azure-storage-denied",
    "azure-storage-firewall",
)
"""Rules about missing rights of the job's role or identity."""

MAX_REASON_CHARS = 4_000

BRIEF_ENDS = (1 << 18, 2 << 20)
"""Bytes to read at the beginning and at the end of a larger log, for an answer at once."""

_COLLECTIVES = ("collective-timeout", "collectives-differ")
"""Rules about ranks that do not call the same collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Root cause of a failure, with evidence and remedy."""

    cause: str
    """Root cause in one sentence."""
    confidence: Confidence
    headline: str = ""
    """The failed rank or line, with the exception's own message; empty if unknown."""
    rule: Rule | None = None
    """Matching rule; None for an unknown failure."""
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    remedy: str = ""
    """Remedy; empty if unknown."""
    last_lines: tuple[Evidence, ...] = ()
    """Last lines that look like errors, or any last lines, if little is known."""
    notes: tuple[str, ...] = field(default=())
    """Notes about what the search left out."""

    @property
    def restart(self) -> Restart | None:
        """Advice about a restart; None if unknown."""
        if self.rule is None or self.rule.is_consequence:
            return None

        return self.rule.restart

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, for `--json` and for scripts."""
        document: dict[str, Any] = {
            "rule": None,
            "headline": self.headline or self.cause,
            "cause": self.cause,
            "confidence": self.confidence,
            "evidence": [_line_as_json(line) for line in self.evidence],
            "consequences": [_consequence_as_json(item) for item in self.consequences],
            "remedy": self.remedy or None,
            "restart": self.restart,
            "source": None,
            "last_lines": [_line_as_json(line) for line in self.last_lines],
            "notes": list(self.notes),
        }
        if self.rule:
            document["rule"] = self.rule.name
            document["source"] = self.rule.source

        return document


def _consequence_as_json(consequence: Consequence) -> dict[str, Any]:
    return {
        "rule": consequence.rule.name,
        "cause": consequence.rule.cause,
        "ranks": sorted(consequence.ranks),
        "lines": consequence.count,
    }


def _line_as_json(line: Evidence) -> dict[str, Any]:
    return {
        "source": line.source,
        "line": line.line or None,
        "rank": line.rank,
        "node": line.node,
        "text": line.text,
    }


def diagnose_lines(lines: Iterable[Evidence], notes: Sequence[str] = ()) -> Diagnosis:
    """Return the root cause that these lines show.

    `notes` is read after the lines, so that their reader can add to it.
    """
    return diagnose_search(Search().read(lines), notes)


def diagnose_search(search: Search, notes: Sequence[str] = ()) -> Diagnosis:
    """Return the root cause of a search: a launcher's verdict, or the most likely candidate."""
    if search.verdict is not None:
        return diagnose_cause(search.verdict, search, notes)

    best = search.best()
    if best is None:
        return _of_nothing_known(search, notes)
    return diagnose_candidate(best, search, notes)


def diagnose_candidate(
    candidate: Candidate, search: Search, notes: Sequence[str] = ()
) -> Diagnosis:
    """Return the diagnosis of a candidate, with the consequences that a search has seen."""
    rule = candidate.rule
    headline = _headline(candidate)
    lines = [member.line for member in (candidate, *candidate.chain)]
    cause = headline
    remedy = ""
    confidence: Confidence = "none"
    last_lines: list[Evidence] = []

    if rule is not None:
        cause = rule.cause
        text = _explained_text(candidate, rule)
        remedy = rule.remedy_for(text)
        confidence = "low"
        if rule.is_consequence:
            cause = f"the cause is not in what was read: {rule.cause}"
        if not candidate.is_warning and rule.names_cause(with_signal_name(text)):
            confidence = "high"
    elif candidate.raised is not None:
        remedy = remedy_of_place(candidate.raised)

    if confidence != "high":
        last_lines = [line for line in search.last_lines if line not in lines]

    if rule is not None and rule.name in _COLLECTIVES:
        lines = _places(search) or lines

    return Diagnosis(
        headline=headline,
        cause=cause,
        confidence=confidence,
        rule=rule,
        evidence=tuple(lines[:MAX_EVIDENCE]),
        consequences=_consequences(search, rule),
        remedy=remedy,
        last_lines=tuple(last_lines),
        notes=tuple(notes),
    )


def _places(search: Search) -> list[Evidence]:
    """Return where the ranks were, one line for each place; none if they were at the same one."""
    places: dict[str, Evidence] = {}
    for raised, candidate in search.exceptions():
        frame = raised.own_frame
        if frame is not None:
            line = replace(candidate.line, text=f"{frame.place}  {frame.code}")
            places.setdefault(frame.place, line)

    if len(places) < 2:
        return []

    return list(places.values())


def _headline(candidate: Candidate) -> str:
    """Return who raised what, with the message, or the line itself."""
    raised = candidate.raised
    if raised is None:
        return candidate.line.text[:MAX_HEADLINE]

    rank = candidate.line.rank
    who = "the program"
    if rank is not None:
        who = f"rank {rank}"

    if not raised.name:
        return f"{who} failed: {candidate.line.text}"[:MAX_HEADLINE]

    return f"{who} raised {_described(candidate)}"[:MAX_HEADLINE]


def _described(candidate: Candidate) -> str:
    """Return the exception with its message, place and chain; the line of anything else."""
    raised = candidate.raised
    if raised is None or not raised.name:
        return candidate.line.text

    where = ""
    if raised.place:
        where = f" ({raised.place})"

    text = f"{raised.name}{_message(raised)}{where}"
    word = "with" if GROUP.search(raised.name) else "from"

    for member in candidate.chain:
        if candidate.is_direct and member.raised:
            text += f", {word} {member.raised.name}{_message(member.raised)}"

    return text


def _message(raised: Raised) -> str:
    if not raised.message:
        return ""

    return f": {raised.message}"


def _explained_text(candidate: Candidate, rule: Rule) -> str:
    """Return the line of the member that the rule explains."""
    for member in candidate.members:
        text = member.line.text + member.more
        if rule.matches(with_signal_name(text)):
            return text

    return candidate.line.text + candidate.more


def _of_nothing_known(search: Search, notes: Sequence[str]) -> Diagnosis:
    cause = "no line of it reports a failure"
    lines = tuple(search.last_lines)
    if not lines and not notes:
        lines = tuple(search.tail)

    if search.open_traceback:
        cause = "an exception was raised; the log that was read does not name it"
        lines = tuple(search.tail)
    elif not search.lines:
        cause = "there is no text in it"

    return Diagnosis(
        cause=cause,
        confidence="none",
        last_lines=lines,
        notes=tuple(notes),
    )


def _consequences(search: Search, rule: Rule | None) -> tuple[Consequence, ...]:
    """Return what followed from a root cause, or says little."""
    consequences = [item for item in search.consequences.values() if item.rule is not rule]
    return tuple(consequences[:MAX_CONSEQUENCES])


def diagnose_run(
    folder: RunFolder, state: RunState, progress: BytesRead | None = None, *, brief: bool = False
) -> Diagnosis:
    """Return why a run failed. Raise StorageError if its events or logs cannot be read.

    Of large logs it reads the beginning and the end. With `brief` it reads little of them, nothing
    if the launcher's error says enough, and does without a log that cannot be read. `progress`
    gets the bytes read, and all.
    """
    notes: list[str] = []
    cause = state.error
    search = Search()
    is_open = cause is None or _is_open(_candidate_of(cause, search), cause)
    if is_open or not brief:
        ends = BRIEF_ENDS if brief else (HEAD_BYTES, TAIL_BYTES)
        try:
            search = Search(_lines_of_success(folder, ends))
            search.read(run_evidence(folder, state, notes, ends, progress))
        except StorageError:
            if not brief:
                raise

    if cause is not None:
        diagnosis = diagnose_cause(cause, search, notes)
        with suppress(StorageError):  # a plan that cannot be read
            left_out = remedy_of_left_out(diagnosis.headline, RunRecord(folder).source_root)
            diagnosis = replace(diagnosis, remedy=left_out or diagnosis.remedy)

        return diagnosis

    whole = diagnose_search(search, notes)
    ended = folder.last_event(Ended)
    says_nothing = whole.confidence == "none" and not whole.evidence and not whole.last_lines
    if was_refused(state) and ended is not None:
        whole = _of_refusal(whole, state, ended.hint)
    elif says_nothing and state.reason:
        whole = replace(whole, cause=state.reason)

    return replace(whole, headline=state.reason or whole.headline)


def diagnose_cause(cause: Cause, search: Search, notes: Sequence[str] = ()) -> Diagnosis:
    """Return the diagnosis of a launcher's error, of an event or of the last line of a log.

    The error is the cause, unless it is a consequence. If it only shows how a process ended, the
    log of that rank, the kernel, an engine or a scheduler may say more.
    """
    reported = _candidate_of(cause, search)
    better = _better(reported, cause, search)
    diagnosis = diagnose_candidate(better or reported, search, notes)
    headline = one_line(cause)
    last_lines = diagnosis.last_lines
    printed = search.last_printed(cause.rank, cause.node)

    if _is_exit(cause) and better is not None:
        headline += f": {_described(better)}"
    elif _is_exit(cause) and reported.is_symptom and printed:
        headline += f"; it printed last: {printed[-1].text}"
        last_lines = printed

    diagnosis = replace(diagnosis, headline=headline[:MAX_HEADLINE], last_lines=last_lines)
    if diagnosis.rule is None:
        diagnosis = replace(diagnosis, cause=diagnosis.headline)
    if cause.hint and better is None:
        diagnosis = replace(diagnosis, remedy=cause.hint)

    return diagnosis


def _is_exit(cause: Cause) -> bool:
    return cause.message.startswith(("exited with code", "cannot run"))


def _candidate_of(cause: Cause, search: Search) -> Candidate:
    """Return the launcher's error as a candidate, with the chain or the group of its traceback."""
    line = _line_of(cause)
    candidate = Candidate(line, 0)
    parts = cause.traceback.splitlines()
    reported = Search().read(Evidence(part, line.source) for part in parts)

    for raised, printed in (*search.exceptions(), *reported.exceptions()):
        is_same = raised.name == cause.exception and cause.message.startswith(raised.message)
        if is_same and printed.line.rank in (None, cause.rank):
            candidate = replace(printed, line=line)
            if not cause.file:
                candidate.line = replace(line, source=printed.line.source, line=printed.line.line)
            break

    rule = rule_of(line.text)
    if rule or candidate.chain:
        candidate.rule = rule

    if candidate.chain:
        candidate.explain()

    return candidate


def _better(reported: Candidate, cause: Cause, search: Search) -> Candidate | None:
    """Return the candidate of a log that says more than the launcher's error, or None."""
    if not _is_open(reported, cause):
        return None
    if cause.consequence or reported.is_consequence:
        best = search.best()
        if best is None or best.kind >= CONSEQUENCE:
            return None

        return best

    # what the rank itself printed may only explain an exit; other lines are not of a rank
    is_exit = _is_exit(cause)
    own_rank = cause.rank if is_exit and cause.rank >= 0 else None
    best = search.best(rank=own_rank, node=cause.node)
    worst_kind = BARE_EXCEPTION if is_exit else LINE_FROM_OUTSIDE
    if best is None or best.is_consequence:
        return None
    if best.kind > worst_kind:
        return best if is_exit and best.kind == UNKNOWN_LINE else None

    has_own_message = bool(cause.traceback)
    if has_own_message and best.kind < LINE_FROM_OUTSIDE:
        return None

    return best


def _is_open(reported: Candidate, cause: Cause) -> bool:
    """Return True if a log may say more than the launcher's error."""
    if cause.consequence or reported.is_consequence or reported.is_symptom:
        return True

    is_code_alone = cause.message.removeprefix("exited with code ").isdigit()
    return is_code_alone or (_is_exit(cause) and reported.rule is None)


def _lines_of_success(folder: RunFolder, ends: tuple[int, int]) -> frozenset[str]:
    """Return the shapes of the lines that the last successful run of the same job printed."""
    runs = list(summaries(RunStore(folder.path.parents[1])))
    names = [run["name"] for run in runs if run["run"] == folder.run_id]
    for run in runs:
        if run["state"] == "succeeded" and [run["name"]] == names:
            return _line_shapes(RunFolder(folder.path.parent / run["run"]), ends)

    return frozenset()


def _line_shapes(folder: RunFolder, ends: tuple[int, int]) -> frozenset[str]:
    shapes: set[str] = set()
    lines = LogReader(folder).read_ends(*ends)
    for _, line in islice(lines, MAX_LINES_OF_SUCCESS):
        shapes.update(shape(part.text) for part in evidence_of(line.text, "", 0))

    return frozenset(shapes)


def diagnose_limit(folder: RunFolder, state: RunState) -> Diagnosis | None:
    """Return the limit that stopped a run, with a remedy; None for another reason."""
    diagnosis = diagnose_search(
        Search().read([Evidence(state.reason[:MAX_REASON_CHARS], "platform")])
    )
    if "limits." not in state.reason or diagnosis.rule is None:
        return None
    if diagnosis.rule.name != "time-is-up":
        return diagnosis

    if "limits.max_wait" in state.reason:
        limit = "limits.max_wait"
    else:
        limit = terms_of(folder).limit or "limits.max_runtime"

    restart = "no checkpoint was told of, so that a rerun begins at the start"
    if state.checkpoint:
        step = state.checkpoint.step
        restart = f"cloudtrain rerun continues from the checkpoint of step {step}"

    return replace(diagnosis, remedy=f"raise {limit}; {restart}")


def was_refused(state: RunState) -> bool:
    """Return True if it failed before it became a job: without a log or costs."""
    return state.state == "failed" and state.ref is None and not state.started


def _of_refusal(diagnosis: Diagnosis, state: RunState, hint: str) -> Diagnosis:
    """Return the cause of a refused submit: a missing right is the client's, not the job's."""
    is_known = diagnosis.rule is not None and diagnosis.rule.name not in _RIGHTS_OF_JOBS
    if is_known:
        return replace(diagnosis, remedy=hint or diagnosis.remedy)

    return Diagnosis(cause=state.reason, confidence="high" if hint else "none", remedy=hint)


def run_evidence(
    folder: RunFolder,
    state: RunState,
    notes: list[str],
    ends: tuple[int, int],
    progress: BytesRead | None = None,
) -> Iterator[Evidence]:
    """Yield evidence of a run's end besides the launcher's error: the platform's reason, logs.

    Append to `notes` what was left out.
    """
    reasons = [state.reason]
    ended = folder.last_event(Ended)
    if ended:
        reasons.insert(0, ended.platform_reason)

    for reason in reasons:
        if reason and not (state.error and reason == f"{process_name(state.error)} failed"):
            yield Evidence(reason[:MAX_REASON_CHARS], "platform")

    reader = LogReader(folder)
    for number, line in reader.read_ends(*ends, progress):
        yield from evidence_of(line.text, f"node-{line.node}.log", number, line.rank, line.node)

    if reader.left_out:
        notes.append(left_out_note(reader.left_out))


def _line_of(cause: Cause) -> Evidence:
    text = f"{cause.exception}: {cause.message}".strip(": ")[:MAX_REASON_CHARS]
    rank = cause.rank if cause.rank >= 0 else None
    if not cause.file:
        return Evidence(text, "launcher", 0, rank, cause.node)

    return Evidence(text, cause.file, cause.line, rank, cause.node)
