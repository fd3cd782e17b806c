"""Root cause of a failure: the most likely candidate of a log, explained by a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudtrain.diagnosis.candidates import Candidate, Consequence
from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Restart, Rule
from cloudtrain.diagnosis.search import Search
from cloudtrain.diagnosis.tracebacks import GROUP, Raised

MAX_CONSEQUENCES = 6
MAX_EVIDENCE = 3
MAX_HEADLINE = 1_000

Confidence = Literal["high", "low", "none"]
"""Confidence of a diagnosis.

`high`: a rule names the cause; `low`: only a symptom or a consequence; `none`: no rule.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Root cause of a failure, with evidence and remedy."""

    cause: str
    """Root cause in one sentence."""
    confidence: Confidence
    headline: str = ""
    """What failed, with the exception's own message; empty if nothing is known."""
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
        return self.rule.restart if self.rule and not self.rule.is_consequence else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, for `--json` and for scripts."""
        return {
            "rule": self.rule.name if self.rule else None,
            "headline": self.headline or self.cause,
            "cause": self.cause,
            "confidence": self.confidence,
            "evidence": [_line_as_json(line) for line in self.evidence],
            "consequences": [
                {
                    "rule": consequence.rule.name,
                    "cause": consequence.rule.cause,
                    "ranks": sorted(consequence.ranks),
                    "lines": consequence.count,
                }
                for consequence in self.consequences
            ],
            "remedy": self.remedy or None,
            "restart": self.restart,
            "source": self.rule.source if self.rule else None,
            "last_lines": [_line_as_json(line) for line in self.last_lines],
            "notes": list(self.notes),
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
    """Return the root cause of a search: its most likely candidate, with the rule of it."""
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
    is_vague = rule is None or rule.is_consequence or rule.is_symptom
    lines = [member.line for member in (candidate, *candidate.chain)]
    cause = headline
    if rule is not None:
        cause = f"the cause is not in what was read: {rule.cause}"
        cause = cause if rule.is_consequence else rule.cause
    return Diagnosis(
        headline=headline,
        cause=cause,
        confidence=("none" if rule is None else "low" if is_vague else "high"),
        rule=rule,
        evidence=tuple(lines[:MAX_EVIDENCE]),
        consequences=_consequences(search, rule),
        remedy=rule.remedy_for(_explained_text(candidate, rule)) if rule else "",
        last_lines=tuple(line for line in search.last_lines if line not in lines)
        if is_vague
        else (),
        notes=tuple(notes),
    )


def _headline(candidate: Candidate) -> str:
    """Return who raised what, with the message, or the line itself."""
    raised = candidate.raised
    if raised is None:
        return candidate.line.text[:MAX_HEADLINE]
    rank = candidate.line.rank
    who = f"rank {rank}" if rank is not None else "the program"
    if not raised.name:
        return f"{who} failed: {candidate.line.text}"[:MAX_HEADLINE]
    where = f" ({raised.place})" if raised.place else ""
    text = f"{who} raised {raised.name}{_message(raised)}{where}"
    word = "with" if GROUP.search(raised.name) else "from"
    for member in candidate.chain:
        if candidate.is_direct and member.raised:
            text += f", {word} {member.raised.name}{_message(member.raised)}"
    return text[:MAX_HEADLINE]


def _message(raised: Raised) -> str:
    return f": {raised.message}" if raised.message else ""


def _explained_text(candidate: Candidate, rule: Rule) -> str:
    """Return the line of the member that the rule explains."""
    members = [member for member in candidate.members if member.rule is rule]
    member = members[0] if members else candidate
    return member.line.text + member.more


def _of_nothing_known(search: Search, notes: Sequence[str]) -> Diagnosis:
    cause = "no line of it reports a failure"
    lines = tuple(search.last_lines or (() if notes else search.tail))
    if search.open_traceback:
        cause = "an exception was raised; the log that was read does not name it"
        lines = tuple(search.tail)
    elif not search.lines:
        cause = "there is no text in it"
    return Diagnosis(cause=cause, confidence="none", last_lines=lines, notes=tuple(notes))


def _consequences(search: Search, rule: Rule | None) -> tuple[Consequence, ...]:
    """Return what followed from a root cause, or says little."""
    return tuple(
        consequence for consequence in search.consequences.values() if consequence.rule is not rule
    )[:MAX_CONSEQUENCES]
