"""Search for matching rules and unknown exceptions in a log, with bounded memory and time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES
from cloudtrain.diagnosis.tracebacks import Raised, TracebackReader

MAX_CHECKED = 20_000
MAX_LAST_CHECKED = 5_000
"""Maximum number of distinct suspicious lines to check, first and last of a log."""
MAX_OTHERS_CHECKED = 2_000
"""Maximum number of distinct lines to check that are not suspicious."""
_MAX_SHAPE = 400
MAX_LAST_LINES = 5
MAX_RANKS = 4_096
_KEPT_LINES = 3

_SUSPICIOUS = tuple(
    """
    error|exception|fail|kill|abort|fatal|assert|denied|refus|invalid|illegal|cannot|can't|could not|couldn't|
    unable|no such|not found|not exist|missing|memory|timed out|timeout|time out|time limit|xid|sig|exit|nan|inf|
    finite|left on device|quota|capacity|limit|preempt|evict|spot|mismatch|incompatible|undefined symbol|expected|
    warn|nccl|cuda|unexpected|corrupt|truncat|not authorized|expired|throttl|too many|too old|read-only|stale|
    broken|reset|closed|already in use|unrecognized|terminat|closing|stop|signal|core dumped|no space|no module|
    recursion|oom|dbe|diverge|not initialized|busy|unavailable|lost|fallen|insufficient|gpu|the world has|
    while leaving|waited for|sign of life|access|pull|requires|please run|log in|bucket|s3|aadsts|token|attempt|
    pickle|same|does not|do not|size of tensor|shape|without|weights only|weights_only|ancdata|emfile|enospc|
    rate exceeded|slowdown|429|minimum|inplace|in-place|backward through|samples|library|version|nvcc|unreachable|
    retries|streamaccess|acr|image|exec|python3
    """.replace("\n    ", "").split("|")
)
"""Words of lines about failures, in lower case; most lines contain no such word."""

_SHAPE = re.compile(r"0x[0-9a-f]+|\d+")
_ERROR_LIKE = re.compile(
    r"\b\w*(Error|Exception)\b|\b(error|fatal|failed|failure|killed|abort\w*|panic|denied|mismatch)\b|\bE\d{4} ",
    re.IGNORECASE,
)
_INFORMATION = re.compile(r"\bNCCL INFO\b|\[(INFO|DEBUG)\]|(?<![=_])\b(INFO|DEBUG)\b[ :|-]")
_TRIED_AGAIN = re.compile(
    r"[Rr]etrying (in|after|\(|up to [1-9])|retry loop|[Ww]ill (be )?retr(y|ied)|\[Retry"
    r" \d+/|[Aa]ttempt \d+ (of|/)"
)
"""Pattern of a failure that is tried again; the last attempt prints another line."""
_WARNING = re.compile(r"\bWARN(ING)?\b|\b\w*Warning:|^\[?W[\d:. ]|\bwarning:", re.IGNORECASE)
_FATAL_WARNING = re.compile(r"NCCL WARN|NVRM|Xid")
_LED_TO = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
_MENTIONED = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): ([^ ].*)")
"""Pattern of an exception within a line."""
_NOTEBOOK_HEADER = re.compile(
    r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*) {3,}Traceback \(most recent call last\)"
)
"""Pattern of a notebook's first line of a traceback, which names the exception."""


@dataclass(slots=True)
class Match:
    """Rule with its matching lines."""

    rule: Rule
    lines: list[Evidence]
    """First matching lines."""
    order: int
    """Position of the first matching line in the log."""
    is_warning: bool
    """True if all of its lines are only warnings."""
    count: int = 1
    ranks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class UnknownException:
    """Exception without a rule."""

    raised: Raised
    line: Evidence
    order: int


class Search:
    """Matching rules and unknown exceptions of the lines that were read."""

    def __init__(self) -> None:
        self.matches: dict[str, Match] = {}
        self.unknown: list[UnknownException] = []
        self.mentioned: UnknownException | None = None
        """Last exception named within a line, such as `job failed: ValueError: …`."""
        self.last_lines: deque[Evidence] = deque(maxlen=MAX_LAST_LINES)
        self.lines = 0
        self.first_traceback: Evidence | None = None
        self._named_first: UnknownException | None = None
        self._order = 0
        self._seen: dict[str, tuple[list[Rule], bool]] = {}
        """Rules of each shape of a line, and True if it looks like an error."""
        self._late: deque[tuple[int, Evidence]] = deque(maxlen=MAX_LAST_CHECKED)
        self._tracebacks = TracebackReader()
        self._before: dict[tuple[int | None, int | None], UnknownException] = {}
        """Unknown exception of a rank that led to its next one."""

    def read(self, lines: Iterable[Evidence]) -> Search:
        """Read all lines, in order."""
        for line in lines:
            self.lines += 1
            self._read_line(line)
            if "\n" in line.text:  # a message of several lines, such as a cloud's reason
                for part in line.text.splitlines():
                    self._read_line(replace(line, text=part))
        late = list(self._late)
        self._late = deque(maxlen=0)
        for order, line in late:
            self._record(line, order, [rule for rule in RULES if rule.matches(line.text)])
        if self._named_first and not (self.matches or self.unknown or self.mentioned):
            self._read_header(self._named_first)
        return self

    def _read_header(self, named: UnknownException) -> None:
        """Record the exception in the header of a traceback that is cut off."""
        if rules := [rule for rule in RULES if rule.matches(f"{named.raised.name}: ")]:
            self._record(named.line, named.order, rules)
        else:
            self.mentioned = named

    def _read_line(self, line: Evidence) -> None:
        self._order += 1
        shape = _shape(line.text)
        raised = False if "\n" in line.text else self._tracebacks.read(line.text, _key(line))
        if raised is True:
            self.first_traceback = self.first_traceback or line
            if header := _NOTEBOOK_HEADER.match(line.text):
                self._named_first = UnknownException(Raised(header[1], ""), line, self._order)
            return  # the code of a frame may contain any word
        entry = self._seen.get(shape)
        rules, is_error_like = entry if entry is not None else self._look_at(line, shape)
        if is_error_like:
            self._mention(line)
            if not rules or any(not rule.is_consequence for rule in rules):
                self.last_lines.append(line)
        if isinstance(raised, Raised):
            if rules:
                self._explained(line, rules)
            elif len(self.unknown) < MAX_RANKS:
                rules = self._rules_of(raised, line, is_checked=shape in self._seen)
        elif (
            _LED_TO.search(line.text) and self.unknown and _key(self.unknown[-1].line) == _key(line)
        ):
            self._before[_key(line)] = self.unknown[-1]
        if rules:
            self._record(line, self._order, rules)

    def _rules_of(self, raised: Raised, line: Evidence, *, is_checked: bool) -> list[Rule]:
        """Return the rules of an exception by its message or its place.

        Record an exception without a rule as unknown.
        """
        if _INFORMATION.search(line.text[:160]):
            return []
        if not is_checked and (
            matching_rules := [rule for rule in RULES if rule.matches(line.text)]
        ):
            return matching_rules
        if rule := next((rule for rule in RULES if rule.knows_place(raised.described)), None):
            return [rule]
        self.unknown.append(UnknownException(raised, line, self._order))
        return []

    def _explained(self, line: Evidence, rules: list[Rule]) -> None:
        """Drop the unknown exception that led to a known one, such as a mapping's KeyError."""
        led_here = self._before.pop(_key(line), None)
        if led_here in self.unknown and not rules[0].is_consequence:
            self.unknown = [raised for raised in self.unknown if raised is not led_here]

    def _mention(self, line: Evidence) -> None:
        if mention := _MENTIONED.search(line.text):
            raised = Raised(mention[1].rpartition(".")[2], mention[2][:500])
            self.mentioned = UnknownException(raised, line, self._order)

    def _look_at(self, line: Evidence, shape: str) -> tuple[list[Rule], bool]:
        """Return the rules of a new line, and True if it looks like an error."""
        if _INFORMATION.search(line.text[:160]) or _TRIED_AGAIN.search(line.text):
            result: tuple[list[Rule], bool] = [], False
            return self._seen.setdefault(shape, result) if len(self._seen) < MAX_CHECKED else result
        lowered = line.text.lower()
        is_suspicious = any(word in lowered for word in _SUSPICIOUS)
        is_error_like = is_suspicious and bool(_ERROR_LIKE.search(line.text))
        if len(self._seen) >= (MAX_CHECKED if is_suspicious else MAX_OTHERS_CHECKED):
            if is_suspicious:
                self._late.append((self._order, line))
            return [], is_error_like
        self._seen[shape] = [rule for rule in RULES if rule.matches(line.text)], is_error_like
        return self._seen[shape]

    def _record(self, line: Evidence, order: int, rules: list[Rule]) -> None:
        is_warning = bool(_WARNING.search(line.text)) and not _FATAL_WARNING.search(line.text)
        for rule in rules:
            match = self.matches.get(rule.name)
            if match is None:
                match = self.matches[rule.name] = Match(rule, [line], order, is_warning)
            else:
                match.count += 1
                if match.is_warning and not is_warning:
                    match.lines = [line]
                    match.order = order
                    match.is_warning = False
                elif len(match.lines) < _KEPT_LINES and line.text != match.lines[0].text:
                    match.lines.append(line)
            if line.rank is not None and len(match.ranks) < MAX_RANKS:
                match.ranks.add(line.rank)


_NUMBERS_MATTER = (
    "Xid",
    "exitcode",
    "signal",
    "Signal",
    "GPUs",
    "code ",
    "status",
    "Errno",
    "Process ",
)
"""Marks of lines whose numbers distinguish them."""


def _key(line: Evidence) -> tuple[int | None, int | None]:
    """Return a key that separates the lines of ranks."""
    return line.rank, line.node


def _shape(text: str) -> str:
    """Return a line without numbers: most lines repeat often, or on every rank."""
    if len(text) > _MAX_SHAPE or any(mark in text for mark in _NUMBERS_MATTER):
        return text
    return _SHAPE.sub("0", text)
