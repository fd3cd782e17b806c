"""Search for candidates in a log, with bounded memory and time.

Progress of a rank, and a later exception of it, take its earlier candidates out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from cloudtrain.diagnosis.aftermath import (
    End,
    end_of,
    explains,
    is_late,
    is_of_another,
    is_teardown,
)
from cloudtrain.diagnosis.candidates import (
    ERROR_LIKE,
    ERROR_LINE,
    GROUP,
    HARMLESS,
    LINE,
    LINE_OF_TOOL,
    NOT_FATAL,
    WARNING,
    Candidate,
    Consequence,
    Raised,
    TracebackReader,
)
from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES, rule_of
from cloudtrain.diagnosis.verdict import verdict_of
from cloudtrain_wire.events import Cause

MAX_SHAPES = 3_000
"""Maximum number of distinct lines whose rules are remembered."""
MAX_LAST_CHECKED = 3_000
"""Maximum number of further distinct lines to check, the last of a log."""
MAX_LAST_LINES = 5
MAX_RANKS = 4_096
MAX_CANDIDATES = 40
"""Maximum number of candidates of a rank."""
MAX_CHAIN = 8
MESSAGE_LINES = 6
"""Maximum lines of a message after the first."""
PROGRESS_LINES = 3
"""Lines of progress after which a rank has outlived what it printed before."""
OLD_LINES = 100
"""Further lines after which a mere line says less than an exit code: many stand at the start."""
_MAX_SHAPE = 400
_MAX_MESSAGE = 4_000

_SHAPE = re.compile(r"0x[0-9a-f]+|\d+")
_INFORMATION = re.compile(
    r"\bNCCL INFO\b|\[(INFO|DEBUG)\]|(?<![=_])\b(INFO|DEBUG)\b[ :|-]"
    r"|^wandb: ERROR Failed to sample metric|^Exception (in thread |ignored in\b)"
)
_GOES_ON = re.compile(
    r"[Rr]etrying\b|retry loop|[Ww]ill (be )?retr(y|ied)|\[Retry \d+/|[Aa]ttempt \d+ (of|/)"
    r"|[Ff]alling back|\b[Ss]kip(ping|ped)\b(?!.*loss scale)|\b[Ii]gnor(ing|ed)\b(?! in)"
    r"|; using |\b[Uu]sing .{1,80} instead"
    r"|, trying |\b[Tt]rying (again|another)|[Cc]ontinuing\b|built? .{0,20}again"
)
"""Pattern of a line that shows that the program continues after a failure."""
_RESTARTED = re.compile(r"[Ww]ill restart worker group|\brestarting (the )?(ranks?|workers?)\b")
"""Pattern of a line of a launcher that starts all ranks again."""
_WARNING = re.compile(
    r"\bWARN(ING)?\b|\b\w*Warning:|^\[?W[\d:. ]|\bwarning:|\bpip's dependency resolver\b"
    r"|, but you have \S+ \S+ which is incompatible",
    re.IGNORECASE,
)
_LOGGED_WARNING = re.compile(
    r"(?!.*(NCCL|signal|torch\.distributed))\W{0,3}(?:[\w.:,/-]+[ |]+){0,5}\[?WARN(ING)?\b"
)
"""Pattern of a line above a traceback that was caught."""
_IN_THREAD = re.compile(r"Exception in thread ")
_HARMLESS = re.compile(
    r"\b(User|Future|Deprecation|PendingDeprecation|Runtime|Import|Syntax|Resource)Warning: "
    r"|\bpip's dependency resolver\b|, but you have \S+ \S+ which is incompatible"
    r"|errno: 97 - Address family not supported|^CUDA kernel errors might be asynchronously"
    r"|\bNET/OFI (?!.*completed with error)"
)
"""Pattern of a warning that never is the cause of an end."""
_FATAL_WARNING = re.compile(r"NCCL WARN|NVRM|Xid|worker died or was killed")
_HARDWARE = re.compile(r"\bXid\b|\bECC\b|\bDBE\b|fallen off the bus|NVLink")
"""Pattern of a line about broken hardware, which a rank may outlive for some steps."""
_PROGRESS = re.compile(
    r"\b(step|epoch|iter|iteration|global_step|batch)s?\b\W{0,4}\d|\bloss\b\W{0,4}\d|\d+/\d+ \["
    r"|\d(it/s|s/it)\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(training|train|run|job|steps)\b.{0,30}\b(succeeded|completed|complete|finished|done)\b"
    r"|\bReporting training SUCCESS|\bSynced \d|'train_runtime'|^Successfully installed "
    r"|\b(saved|wrote) (the )?model\b|\bmodel (saved|written)\b",
    re.IGNORECASE,
)
_EXIT_0 = re.compile(r"\bexit(ing|ed)?( with)?( code)? 0\b", re.IGNORECASE)
_LOGGED_EXCEPTION = re.compile(
    r"\W{0,3}(INFO|DEBUG)\W+(?:[\w.]+ ?[:|-] ?)?"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): "
    r"|Could not load library |\S+: line \d+: )"
)
"""Pattern of an exception, or of an error of a loader or a shell, that is logged as information."""
_DIRECT = "The above exception was the direct cause"
_CONTEXT = "During handling of the above exception"
_MENTIONED = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): ([^ ].*)")
"""Pattern of an exception within a line."""
_THROWN = re.compile(r"terminate called after throwing an instance of '(?:\w+::)*(\w+)'")
_WHAT = re.compile(r" *what\(\): +(.+)")
"""Patterns of an exception of C++, and of its message in the next line."""
_NO_PROGRAM = re.compile(r"FileNotFoundError: [^<]*: '([^'/<]+)' < _execute_child in ")
"""Pattern of an exception about a program that Python was to start."""
_NOTEBOOK_HEADER = re.compile(
    r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*) {3,}Traceback \(most recent call last\)"
)
"""Pattern of a notebook's first line of a traceback, which names the exception."""

_NUMBERS_MATTER = (
    "Xid",
    "exit",
    "Exit",
    "signal",
    "Signal",
    "GPUs",
    "code ",
    "status",
    "Errno",
    "Process ",
)
"""Marks of lines whose numbers distinguish them."""


@dataclass(slots=True)
class _Rank:
    """Candidates and progress of one rank."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    progress: int = 0
    positions: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    """Numbers of its last lines of progress, which each closing progress bar repeats."""
    latest: str = ""
    """Key of its latest candidate."""
    latest_order: int = 0
    outlived: int = 0
    """Position of the line before which it has outlived everything."""
    open: Candidate | None = None
    """Latest candidate, while its message may continue."""
    last_exception: Candidate | None = None
    message: Candidate | None = None
    """Latest exception, while further lines of its message may come."""
    led_by: Candidate | None = None
    is_led_directly: bool = False
    has_warned: bool = False
    """True if the line before was a warning: a traceback after it was caught."""
    is_caught: bool = False
    is_in_thread: bool = False
    """True if the traceback that comes is of a thread."""
    printed: deque[Evidence] = field(default_factory=lambda: deque(maxlen=MAX_LAST_LINES))
    """Its last lines."""
    end: End = End.NONE
    is_restarted: bool = False
    """True if a launcher starts it again: progress then outlives anything."""


class Search:
    """Candidates of the lines that were read."""

    def __init__(self, known: Container[str] = frozenset()) -> None:
        self.consequences: dict[str, Consequence] = {}
        self.last_lines: deque[Evidence] = deque(maxlen=MAX_LAST_LINES)
        self.tail: deque[Evidence] = deque(maxlen=MAX_LAST_LINES)
        self.lines = 0
        self.open_traceback: Evidence | None = None
        self.verdict: Cause | None = None
        """Cause that a launcher named at its end."""
        self._known = known
        """Shapes of lines that a successful run of the same job printed, too."""
        self._header: Candidate | None = None
        self._thrown: tuple[_Rank, str] | None = None
        """Rank and name of an exception of C++ whose message comes next."""
        self._order = 0
        self._end = End.NONE
        """End of any rank."""
        self._has_failed = False
        """True once any line showed a failure."""
        self._has_cause = False
        """True once a rule or an exception named one."""
        self._shapes: dict[str, Rule | None] = {}
        self._late: deque[Candidate] = deque(maxlen=MAX_LAST_CHECKED)
        self._ranks: dict[tuple[int | None, int | None, str], _Rank] = {}
        """Ranks by rank, node, and file of lines without a rank."""
        self._tracebacks = TracebackReader()

    def read(self, lines: Iterable[Evidence]) -> Search:
        """Read all lines, in order."""
        for line in lines:
            self.lines += 1
            self.tail.append(line)

            if shape(line.text) in self._known:
                continue
            self._read_line(line)
            if "\n" in line.text:  # a message of several lines, such as a cloud's reason
                for part in line.text.splitlines():
                    self._read_line(replace(line, text=part))

        for late in self._late:
            rank = self._rank(late.line)
            if late.order > rank.outlived:
                late.rule = rule_of(late.line.text)
                self._add(rank, late)

        self._late.clear()
        return self

    def best(self, rank: int | None = None, node: int | None = None) -> Candidate | None:
        """Return the most likely cause, or None; with a node only of that rank or the node."""
        candidates: list[Candidate] = []
        for (of_rank, of_node, _), printed in self._ranks.items():
            if node is None or (of_rank in (None, rank) and of_node in (None, node)):
                candidates += printed.candidates.values()

        if node is None and self._header:
            candidates.append(self._header)
        for candidate in candidates:
            if candidate.is_of_thread:
                candidate.is_harmless = self._end is End.NONE and node is None
            if candidate.kind in (ERROR_LINE, LINE, LINE_OF_TOOL):
                candidate.is_harmless = self._order - candidate.order > OLD_LINES

        likely = [each for each in candidates if not (each.is_harmless and each.is_outlived)]
        return min(likely, key=lambda candidate: candidate.score, default=None)

    def exceptions(self) -> list[tuple[Raised, Candidate]]:
        """Return the last exception of each rank."""
        last = [rank.last_exception for rank in self._ranks.values()]
        return [(latest.raised, latest) for latest in last if latest and latest.raised]

    def last_printed(self, rank: int, node: int) -> tuple[Evidence, ...]:
        """Return the last lines of a rank."""
        found = self._ranks.get((rank, node, "")) or self._ranks.get((rank, None, ""))
        return tuple(found.printed) if found else ()

    def _rank(self, line: Evidence) -> _Rank:
        key = _key(line)
        rank = self._ranks.get(key)
        if rank is None:
            rank = _Rank()
            if len(self._ranks) < MAX_RANKS:
                self._ranks[key] = rank

        return rank

    def _read_line(self, line: Evidence) -> None:
        self._order += 1
        verdict = verdict_of(line)
        if verdict is not None:
            before = self.verdict
            is_first = before is None or before.node == verdict.node
            if is_first or (before and before.consequence and not verdict.consequence):
                self.verdict = verdict
            return

        rank = self._rank(line)
        rank.printed.append(line)
        raised = False if "\n" in line.text else self._tracebacks.read(line.text, _key(line))
        if raised is True:
            self._read_frame(rank, line)
            return  # the code of a frame may contain any word

        if message := _WHAT.match(line.text):
            if self._thrown is None and self._has_cause:
                return
            if self._thrown is not None:
                thrower, name = self._thrown
                thrower.candidates.pop("aborted", None)
                thrower.end = self._end = End.NONE
                raised = Raised(name, message[1][:500])

        thrown = _THROWN.search(line.text)
        self._thrown = None
        if thrown and not self._has_cause:
            self._thrown = (rank, thrown[1])
        rank.has_warned = bool(_LOGGED_WARNING.match(line.text))
        if _IN_THREAD.match(line.text):
            rank.is_in_thread = True

        if isinstance(raised, Raised):
            self.open_traceback = None
            self._read_exception(rank, line, raised)
            return

        if _DIRECT in line.text or _CONTEXT in line.text:
            rank.led_by = rank.last_exception
            rank.is_led_directly = _DIRECT in line.text
            return

        if rank.message and self._order - rank.message.order <= MESSAGE_LINES:
            rank.message.more = f"{rank.message.more}\n{line.text}"[:_MAX_MESSAGE]
        if not self._is_progress(rank, line):
            self._read_other(rank, line)

    def _read_frame(self, rank: _Rank, line: Evidence) -> None:
        if header := _NOTEBOOK_HEADER.match(line.text):
            rule = rule_of(f"{header[1]}: ")
            self._header = Candidate(line, self._order, Raised(header[1], ""), rule)
            self._header.is_mention = True

        if not self._tracebacks.is_ignored:
            self.open_traceback = self.open_traceback or line
        rank.is_caught = rank.is_caught or rank.has_warned
        rank.has_warned = False

    def _read_exception(self, rank: _Rank, line: Evidence, raised: Raised) -> None:
        is_caught = rank.is_caught or rank.is_in_thread
        is_of_thread = rank.is_in_thread
        rank.is_caught = rank.is_in_thread = False

        is_information = not raised.frames and _INFORMATION.search(line.text[:160])
        if is_information or _GOES_ON.search(line.text):
            return
        self.last_lines.append(line)
        rule = self._rule_of(line)
        if program := _NO_PROGRAM.match(raised.described):
            rule = rule_of(f"{program[1]}: command not found")
        if rule is None or rule.is_symptom:
            places = (rule for rule in RULES if rule.knows_place(raised.described))
            rule = next(places, rule)

        candidate = Candidate(line, self._order, raised, rule, is_harmless=is_caught)
        candidate.is_of_thread = is_of_thread
        if rank.led_by is not None:
            self._chain(candidate, rank.led_by, is_direct=rank.is_led_directly)
            rank.led_by = None

        before = rank.candidates.get("exception")
        if raised.is_leaf and before and before.raised and GROUP.search(before.raised.name):
            self._chain(before, candidate, is_direct=True)
            return
        is_of_another = not candidate.has_frames or (before is not None and before.ends_program)
        if before and is_of_another and not candidate.chain:
            return

        rank.last_exception = candidate
        rank.message = candidate
        self._add(rank, candidate)

    def _chain(self, candidate: Candidate, led_by: Candidate, *, is_direct: bool) -> None:
        candidate.chain = [*candidate.chain, led_by, *led_by.chain][:MAX_CHAIN]
        candidate.is_direct = is_direct
        candidate.explain()

    def _is_progress(self, rank: _Rank, line: Evidence) -> bool:
        """Return True for a line of progress, or one of a program that continues."""
        if _RESTARTED.search(line.text):
            for each in self._ranks.values():
                each.is_restarted = True
            return True

        if _GOES_ON.search(line.text):
            if self._order - rank.latest_order <= 2:
                rank.candidates.pop(rank.latest, None)
                self._forget_end(rank)
            return True

        if line.rank is not None and _EXIT_0.search(line.text):
            self._outlive(rank)
            return True

        if _DONE.search(line.text) and not ERROR_LIKE.search(line.text):
            self._drop(rank, NOT_FATAL)
            return True

        if not _PROGRESS.search(line.text) or ERROR_LIKE.search(line.text):
            return False
        position = " ".join(_SHAPE.findall(line.text)[:3])
        if position not in rank.positions:
            rank.positions.append(position)
            rank.progress += 1
            self._drop(rank, (WARNING, HARMLESS))

            if rank.progress >= PROGRESS_LINES:
                self._outlive(rank)
                if self.verdict is not None and self.verdict.rank == line.rank:
                    self.verdict = None

        return False

    def _outlive(self, rank: _Rank) -> None:
        rank.progress = 0
        rank.outlived = self._order
        rank.open = rank.message = rank.led_by = None
        for key, candidate in list(rank.candidates.items()):
            is_final = candidate.ends_program and not rank.is_restarted
            if not is_final and not _HARDWARE.search(candidate.line.text):
                del rank.candidates[key]

        self._forget_end(rank)

    def _forget_end(self, rank: _Rank) -> None:
        """Take note that a rank continues."""
        rank.end = self._end = End.NONE
        if self._has_failed:
            self._has_failed = any(each.candidates for each in self._ranks.values())
            self._has_cause = self._has_failed

    def _drop(self, rank: _Rank, kinds: Container[int]) -> None:
        """Take candidates of these kinds out."""
        for key, candidate in list(rank.candidates.items()):
            if candidate.is_of_thread:
                candidate.is_outlived = True
            elif candidate.kind in kinds and not candidate.is_consequence:
                del rank.candidates[key]

    def _read_other(self, rank: _Rank, line: Evidence) -> None:
        is_information = _INFORMATION.search(line.text[:160]) is not None
        if is_information and not _LOGGED_EXCEPTION.match(line.text):
            return
        if (self._has_failed and is_teardown(line.text)) or (
            self._has_cause and is_of_another(line.text)
        ):
            self.last_lines.append(line)
            return
        goes_on = rank.open is not None and self._order - rank.open.order <= MESSAGE_LINES
        is_error_like = bool(ERROR_LIKE.search(line.text))

        if shape(line.text) not in self._shapes and len(self._shapes) >= MAX_SHAPES:
            self._late.append(Candidate(line, self._order))
            return

        rule = self._rule_of(line)
        is_warning = bool(_WARNING.search(line.text)) and not _FATAL_WARNING.search(line.text)
        if is_error_like and not is_warning and not (rule and rule.is_consequence):
            self.last_lines.append(line)
        if rule is None and (goes_on or is_warning or not is_error_like):
            return
        is_cause = rule is not None and not rule.is_consequence and not is_warning
        if rank.open and goes_on and is_cause and explains(line, rank.open):
            explained = rank.open
            explained.chain.append(Candidate(line, self._order, rule=rule))
            explained.explain()
            rank.candidates.pop(rank.latest, None)
            self._add(rank, explained)

            return

        mention = _MENTIONED.search(line.text) if rule is None else None
        raised = Raised(mention[1].rpartition(".")[2], mention[2][:500]) if mention else None
        candidate = Candidate(line, self._order, raised, rule, is_warning=is_warning)
        candidate.is_harmless = bool(_HARMLESS.search(line.text))
        candidate.is_mention = mention is not None
        self._add(rank, candidate)

    def _rule_of(self, line: Evidence) -> Rule | None:
        key = shape(line.text)
        if key in self._shapes:
            return self._shapes[key]
        rule = rule_of(line.text)
        if len(self._shapes) < MAX_SHAPES:
            self._shapes[key] = rule
        return rule

    def _add(self, rank: _Rank, candidate: Candidate) -> None:
        rule = candidate.rule
        if rule is not None and (rule.is_consequence or rule.is_symptom):
            consequence = self.consequences.setdefault(rule.name, Consequence(rule))
            consequence.count += 1

            if candidate.line.rank is not None and len(consequence.ranks) < MAX_RANKS:
                consequence.ranks.add(candidate.line.rank)

        end = rank.end
        if candidate.line.rank is None or candidate.is_consequence:
            end = max(end, self._end)
        if is_late(candidate, end):
            self.last_lines.append(candidate.line)
            return

        rank.end = max(rank.end, end_of(candidate))
        self._end = max(self._end, rank.end)
        if not candidate.is_harmless and not candidate.is_warning:
            self._has_failed = True
            is_named = rule is not None or candidate.raised is not None
            self._has_cause = self._has_cause or is_named

        if candidate.is_of_thread:
            key = "thread"
            replaces = False
        elif candidate.is_harmless:
            key = "harmless"
            replaces = True
        elif candidate.raised and not candidate.is_mention and not candidate.is_consequence:
            key = "exception"
            replaces = True
        else:
            key = rule.name if rule else "line"
            replaces = False

        rank.latest = key
        says_little = rule is None or rule.is_symptom
        rank.open = candidate if says_little and not candidate.is_warning else None
        rank.latest_order = candidate.order
        rank.progress = 0
        if key in rank.candidates and not replaces:
            return
        if key in rank.candidates or len(rank.candidates) < MAX_CANDIDATES:
            rank.candidates[key] = candidate


def _key(line: Evidence) -> tuple[int | None, int | None, str]:
    stream = line.stream if line.rank is None else ""
    return line.rank, line.node, stream


def shape(text: str) -> str:
    """Return a line without numbers: most lines repeat often, or on every rank."""
    if len(text) > _MAX_SHAPE or any(mark in text for mark in _NUMBERS_MATTER):
        return text
    return _SHAPE.sub("0", text)
