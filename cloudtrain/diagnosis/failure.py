"""Root cause of a failure: the most specific and earliest rule that matches, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cloudtrain.diagnosis.flight_recorder import FlightRecord, name_ranks
from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Restart, Rule
from cloudtrain.diagnosis.rules import rule_named
from cloudtrain.diagnosis.search import Match, Search, UnknownException

MAX_CONSEQUENCES = 6
_MAX_RANKS_NAMED = 8

Confidence = Literal["high", "low", "none"]
"""Confidence of a diagnosis.

`high`: a specific rule matched; `low`: only a general rule or a consequence; `none`: no rule.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consequence:
    """Consequence of the root cause."""

    rule: Rule
    ranks: tuple[int, ...]
    count: int

    @property
    def sentence(self) -> str:
        """Sentence such as `a collective operation timed out: … (rank 0, 1, 2)`."""
        shown = ", ".join(map(str, self.ranks[:_MAX_RANKS_NAMED])) + (
            ", …" * (len(self.ranks) > _MAX_RANKS_NAMED)
        )
        word = "rank" if len(self.ranks) == 1 else "ranks"
        return self.rule.cause + (f" ({word} {shown})" if self.ranks else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Root cause of a failure, with evidence and remedy."""

    cause: str
    """Root cause in one sentence."""
    confidence: Confidence
    rule: Rule | None = None
    """Matching rule; None for an unknown failure."""
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    remedy: str = ""
    """Remedy; empty if unknown."""
    last_lines: tuple[Evidence, ...] = ()
    """Last lines that look like errors, if the cause is unknown."""
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
            "cause": self.cause,
            "confidence": self.confidence,
            "evidence": [_line_as_json(line) for line in self.evidence],
            "consequences": [
                {
                    "rule": consequence.rule.name,
                    "cause": consequence.rule.cause,
                    "ranks": list(consequence.ranks),
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
    """Return the root cause of a search: the first of the most specific matches."""
    ranked = sorted(search.matches.values(), key=_weight)
    unknown = search.unknown[0] if search.unknown else None
    root = ranked[0] if ranked else None
    if unknown and (root is None or _counts_before(unknown, root)):
        return _of_unknown(unknown, ranked, notes)
    if root is None and search.mentioned:
        return _of_unknown(search.mentioned, (), notes)
    if root is None:
        return _of_nothing_known(search, notes)
    return _of_rule(root, ranked[1:], search, notes)


def with_flight_record(diagnosis: Diagnosis, record: FlightRecord) -> Diagnosis:
    """Return the diagnosis with the ranks that the dumps of the flight recorder blame.

    They are the cause if only consequences are known otherwise.
    """
    notes = [*diagnosis.notes, *record.mismatches]
    if record.absent:
        notes.append(
            f"{name_ranks(record.absent)} left no dump: a rank that failed may be among them"
        )
    if not record.sentence:
        return replace(diagnosis, notes=tuple(notes))
    if diagnosis.rule is not None and not diagnosis.rule.is_consequence:
        return replace(diagnosis, notes=(*notes, record.sentence))
    remedy = (
        f"look at what {name_ranks(record.missing)} did before that: the log, the stack of a"
        " process that hangs (py-spy dump), an Xid of its GPU in its machine's log"
    )
    rule = diagnosis.rule or rule_named("collective-timeout")
    return replace(
        diagnosis,
        cause=record.sentence,
        confidence="low",
        rule=rule,
        remedy=remedy,
        last_lines=(),
        notes=tuple(notes),
    )


def _weight(match: Match) -> tuple[bool, bool, bool, int]:
    """Return the sort key of a root cause: the most specific first, then the earliest."""
    rule = match.rule
    return rule.is_consequence, rule.is_general or match.is_warning, rule.is_catch_all, match.order


def _counts_before(unknown: UnknownException, root: Match) -> bool:
    """Return True if an unknown exception is the cause rather than a match.

    A specific rule comes first, and so does an earlier general one.
    """
    if root.rule.is_consequence:
        return True
    return (root.rule.is_general or root.is_warning) and unknown.order < root.order


def _of_nothing_known(search: Search, notes: Sequence[str]) -> Diagnosis:
    cause = "no rule knows what failed here"
    lines = tuple(search.last_lines)
    if not lines and search.first_traceback:
        cause = "an exception was raised; the log that was read does not name it"
        lines = (search.first_traceback,)
    elif not lines:
        cause = "nothing in it looks like a failure" if search.lines else "there is no text in it"
    return Diagnosis(cause=cause, confidence="none", last_lines=lines, notes=tuple(notes))


def _of_unknown(
    unknown: UnknownException, ranked: Sequence[Match], notes: Sequence[str]
) -> Diagnosis:
    raised = unknown.raised
    rank = unknown.line.rank
    who = f"rank {rank}" if rank is not None else "the program"
    message = f": {raised.message}" if raised.message else ""
    where = f" ({raised.place})" if raised.place else ""
    return Diagnosis(
        cause=f"{who} raised {raised.name}{message}{where}, which no rule knows",
        confidence="none",
        evidence=(unknown.line,),
        consequences=_consequences(ranked),
        notes=tuple(notes),
    )


def _of_rule(
    root: Match, matches: Sequence[Match], search: Search, notes: Sequence[str]
) -> Diagnosis:
    rule = root.rule
    only = rule.is_consequence
    return Diagnosis(
        cause=f"the cause is not in what was read: {rule.cause}" if only else rule.cause,
        confidence="low" if only or rule.is_general or root.is_warning else "high",
        rule=rule,
        evidence=tuple(root.lines),
        consequences=_consequences(matches),
        remedy=rule.remedy_for(root.lines[0].text),
        last_lines=tuple(search.last_lines) if only or rule.is_catch_all else (),
        notes=tuple(notes),
    )


def _consequences(matches: Sequence[Match]) -> tuple[Consequence, ...]:
    """Return the other matches that follow from a root cause or say little."""
    return tuple(
        Consequence(rule=match.rule, ranks=tuple(sorted(match.ranks)), count=match.count)
        for match in matches
        if match.rule.is_consequence or match.rule.is_general
    )[:MAX_CONSEQUENCES]
