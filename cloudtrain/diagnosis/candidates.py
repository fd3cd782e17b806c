"""Candidates for the cause of a failure, and their order.

A candidate is an exception with its chain, or a line that looks like an error. Rules explain a
candidate and its chain; they do not bring another line forward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES
from cloudtrain.diagnosis.tracebacks import Raised

_MAX_RANKS_NAMED = 8

(
    EXCEPTION,
    LINE_FROM_OUTSIDE,
    SYMPTOM,
    LINE_OF_SYMPTOM,
    ERROR_LINE,
    BARE_EXCEPTION,
    LINE,
    WARNING,
    CONSEQUENCE,
    LINE_OF_CONSEQUENCE,
    UNKNOWN_LINE,
    HARMLESS,
) = range(12)
"""Kinds of candidates, the most likely cause first."""

ERROR_LIKE = re.compile(
    r"\b\w*(Error|Exception)\b(?! ?[=:] ?[\d.]+\b| rate)|\b\w+Failed\b"
    r"|(?<!\b0 )\b(errors?|fatal|failed|failure|killed|terminated|evicted|abort\w*|panic|denied|mismatch)\b"
    r"(?! ?[=:] ?[\d.]+\b| rate)|\bE\d{4} ",
    re.IGNORECASE,
)
_FROM_OUTSIDE = re.compile(
    r"\bXid\b|\bECC\b|\bDBE\b|fallen off the bus|NVLink|NVRM|NCCL WARN|\boom\b|\boom[-_]|OOMKilled"
    r"|Out of memory: Kill|Memory cgroup|OutOfMemoryHandler|^(slurmstepd|srun|sbatch|salloc): "
    r"|DUE TO |JobState=|Evicted|[Pp]reempt|NotReady",
)
"""Pattern of lines of a kernel, an engine or a scheduler: they say why a process ended."""


@dataclass(slots=True)
class Candidate:
    """Possible cause: an exception, or a line that looks like an error."""

    line: Evidence
    order: int
    """Position in the log."""
    raised: Raised | None = None
    """Exception, if it is one."""
    rule: Rule | None = None
    """Rule that explains it or its chain."""
    is_warning: bool = False
    is_harmless: bool = False
    """True for a warning that never ends a program."""
    is_mention: bool = False
    """True if a line only mentions the exception."""
    more: str = ""
    """Next lines of its message."""
    chain: list[Candidate] = field(default_factory=list)
    """Exceptions that led to it, or that its group holds, the nearest first."""
    is_direct: bool = False
    """True if the chain was told by `raise … from` or by a group: its end is the cause."""

    @property
    def members(self) -> list[Candidate]:
        """Return itself and its chain, the likely cause first."""
        members = [self, *self.chain]
        return members[::-1] if self.is_direct else members

    def explain(self) -> None:
        """Take the rule of the first member that says most."""
        rules = [member.rule for member in self.members if member.rule is not None]
        self.rule = min(rules, key=_detail, default=None)

    @property
    def is_consequence(self) -> bool:
        """True if another process caused it."""
        return self.rule is not None and self.rule.is_consequence

    @property
    def has_frames(self) -> bool:
        """True if a traceback of it was read."""
        return any(member.raised and member.raised.frames for member in self.members)

    @property
    def kind(self) -> int:
        """Return what it is; the likelier a kind is the cause, the lower.

        An exception comes first. If it only shows how a process ended, a line of the kernel, an
        engine or a scheduler says more; a line of anything else may be older and harmless.
        """
        is_exception = self.raised is not None and not self.is_mention
        if self.is_harmless:
            return HARMLESS
        if self.is_consequence:
            return CONSEQUENCE if is_exception else LINE_OF_CONSEQUENCE
        if self.is_warning:
            return WARNING
        if self.rule is None and is_exception:
            return EXCEPTION if self.has_frames else BARE_EXCEPTION
        if self.rule is None:
            return UNKNOWN_LINE
        if self.rule.is_symptom:
            return SYMPTOM if is_exception else LINE_OF_SYMPTOM
        if is_exception:
            return EXCEPTION
        is_from_outside = self.line.source == "platform" or _FROM_OUTSIDE.search(self.line.text)
        if is_from_outside:
            return LINE_FROM_OUTSIDE
        return ERROR_LINE if ERROR_LIKE.search(self.line.text) else LINE

    @property
    def score(self) -> tuple[int, int]:
        """Return the sort key: the most likely cause first, which is the last of mere lines."""
        kind = self.kind
        return kind, -self.order if kind in (ERROR_LINE, LINE) else self.order


@dataclass(slots=True)
class Consequence:
    """Consequence of the root cause, or a symptom of it."""

    rule: Rule
    ranks: set[int] = field(default_factory=set)
    count: int = 0

    @property
    def sentence(self) -> str:
        """Sentence such as `a collective operation timed out: … (rank 0, 1, 2)`."""
        shown = ", ".join(map(str, sorted(self.ranks)[:_MAX_RANKS_NAMED])) + (
            ", …" * (len(self.ranks) > _MAX_RANKS_NAMED)
        )
        word = "rank" if len(self.ranks) == 1 else "ranks"
        return self.rule.cause + (f" ({word} {shown})" if self.ranks else "")


def _detail(rule: Rule) -> tuple[bool, bool, int]:
    """Return the sort key of rules of one failure: a cause first, then a detailed symptom."""
    return rule.is_consequence, rule.is_symptom, RULES.index(rule) if rule.is_symptom else 0
