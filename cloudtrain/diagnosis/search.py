"""Finds in the lines of a log which rules match, and the exceptions that no rule knows. Memory and time are bounded."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES

MAX_CHECKED, MAX_LAST_CHECKED = 20_000, 5_000
"""Different suspicious lines that are held against all rules: the first ones, and the last ones of a longer log."""
MAX_OTHERS_CHECKED = 2_000
"""Once so many different lines were, those without a suspicious word are not any more."""
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
"""A line without any of these, in lower case, is most likely none about a failure: most lines of a log."""

_SHAPE = re.compile(r"0x[0-9a-f]+|\d+")
_ERROR_LIKE = re.compile(
    r"\b\w*(Error|Exception)\b|\b(error|fatal|failed|failure|killed|aborted|panic|denied)\b|\bE\d{4} ", re.IGNORECASE
)
_INFORMATION = re.compile(r"\bNCCL INFO\b|\[(INFO|DEBUG)\]|\b(INFO|DEBUG)\b[ :|-]")
_WARNING = re.compile(r"\bWARN(ING)?\b|\b\w*Warning:|^\[?W[\d:. ]|\bwarning:", re.IGNORECASE)
_FATAL_WARNING = re.compile(r"NCCL WARN|NVRM|Xid")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$")


@dataclass(slots=True)
class Match:
    """A rule that some lines match."""

    rule: Rule
    lines: list[Evidence]
    """The first few."""
    order: int
    """Which of all suspicious lines the first one is."""
    is_warning: bool
    """Whether every such line is only a warning."""
    count: int = 1
    ranks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class UnknownException:
    """An exception that ends a traceback, which no rule knows."""

    name: str
    message: str
    line: Evidence
    order: int
    file: str = ""
    """Of the innermost frame."""
    file_line: int = 0


@dataclass(slots=True)
class _Traceback:
    """A traceback that is being read, of one rank."""

    file: str = ""
    line: int = 0


class Search:
    """What was found in the lines that were handed over."""

    def __init__(self) -> None:
        self.matches: dict[str, Match] = {}
        self.unknown: list[UnknownException] = []
        self.last_lines: deque[Evidence] = deque(maxlen=MAX_LAST_LINES)
        self.lines = 0
        self._order = 0
        self._seen: dict[str, tuple[list[Rule], bool]] = {}
        """The rules of a line, and whether it looks like an error, by the line with its numbers left out."""
        self._late: deque[tuple[int, Evidence]] = deque(maxlen=MAX_LAST_CHECKED)
        self._open: dict[tuple[int | None, int | None], _Traceback] = {}

    def read(self, lines: Iterable[Evidence]) -> Search:
        """Look at all lines, in order."""
        for line in lines:
            self.lines += 1
            if self._follow_traceback(line):
                continue  # a frame, whose code may say anything
            self._order += 1
            shape = _shape(line.text)
            known = self._seen.get(shape)
            rules, is_error_like = known if known is not None else self._look_at(line, shape)
            if is_error_like:
                self.last_lines.append(line)
            if rules:
                self._record(line, self._order, rules)
        late, self._late = list(self._late), deque(maxlen=0)
        for order, line in late:
            self._record(line, order, [rule for rule in RULES if rule.matches(line.text)])
        return self

    def _look_at(self, line: Evidence, shape: str) -> tuple[list[Rule], bool]:
        """The rules of a line that is unlike all before it, and whether it looks like an error."""
        if _INFORMATION.search(line.text[:160]):
            found: tuple[list[Rule], bool] = [], False
            return self._seen.setdefault(shape, found) if len(self._seen) < MAX_CHECKED else found
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
                    match.lines, match.order, match.is_warning = [line], order, False
                elif len(match.lines) < _KEPT_LINES and line.text != match.lines[0].text:
                    match.lines.append(line)
            if line.rank is not None and len(match.ranks) < MAX_RANKS:
                match.ranks.add(line.rank)

    def _follow_traceback(self, line: Evidence) -> bool:
        """Whether a line belongs to a traceback; the exception at its end is kept if no rule knows it."""
        key = (line.rank, line.node)
        if _TRACEBACK in line.text:
            if len(self._open) < MAX_RANKS:
                self._open[key] = _Traceback()
            return True
        traceback = self._open.get(key)
        if traceback is None:
            return False
        if frame := _FRAME.match(line.text):
            traceback.file, traceback.line = frame[1][-300:], int(frame[2][:9])
            return True
        if line.text.startswith(" ") or not line.text:
            return True
        del self._open[key]
        found = _EXCEPTION.match(line.text)
        if rules := _known_by_place(line.text, traceback):
            self._record(line, self._order + 1, rules)
        elif found and not any(rule.matches(line.text) for rule in RULES) and len(self.unknown) < MAX_RANKS:
            message = (found[2] or "")[:500]
            self.unknown.append(
                UnknownException(
                    found[1].rpartition(".")[2], message, line, self._order + 1, traceback.file, traceback.line
                )
            )
        return False


_NUMBERS_MATTER = ("Xid", "exitcode", "signal", "Signal", "GPUs", "code ", "status", "Errno", "Process ")
"""Lines with these are told apart by their numbers, too."""


def _known_by_place(text: str, traceback: _Traceback) -> list[Rule]:
    """The rules that know an exception by the file that raised it: its message alone says too little."""
    where = f"{text} ({traceback.file}:{traceback.line})"
    return [rule for rule in RULES if any(r"\.py:" in each for each in rule.patterns) and rule.matches(where)]


def _shape(text: str) -> str:
    """A line with its numbers left out, where they do not matter: most lines are printed often, or by every rank."""
    if len(text) > _MAX_SHAPE or any(mark in text for mark in _NUMBERS_MATTER):
        return text
    return _SHAPE.sub("0", text)
