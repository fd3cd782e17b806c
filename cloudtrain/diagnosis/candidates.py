"""Candidates for the cause of a failure, and their order; and the reader of tracebacks.

A candidate is an exception with its chain, or a line that looks like an error. Rules explain a
candidate and its chain; they do not bring another line forward. Tracebacks may be cut off, boxed or
of notebooks.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES, SUMMARY

MAX_FRAMES = 12
"""Maximum frames of a traceback; the innermost are kept."""
MAX_OPEN = 4_096
"""Maximum number of tracebacks that are read at a time, one per rank."""
_MAX_TEXT = 300
_HEADER = "Traceback (most recent call last)"
_IGNORED = re.compile(r"Exception ignored in|^Error in (atexit|sys\.excepthook)")
GROUP = re.compile(r"ExceptionGroup$")
_IN_GROUP = re.compile(r"^ +[|+] ?")
_SEPARATOR = re.compile(r"^ +\+[-+]{4,}.*-$")
_FRAME = re.compile(r'^(\s*)File "([^"]+)", line (\d+)(?:, in (.*))?')
# File ~/lib/trainer.py:2241, in Trainer.train(self)
_NOTEBOOK = re.compile(r"^(\s*)File (\S+):(\d+)(?:, in (.*))?$")
_BOXED = re.compile(r"^([│|] +)(\S+\.py):(\d+) in (\S+)")
_INSIDE = re.compile(r"^(?:[ \t│|╭╰❱>]|-+> ?\d|-{2,} ?\d|\d+ frames$|[~/<\[]\S{0,200} in \S|$)")
"""Pattern of lines inside a traceback: code, carets, a box, a call of an old notebook."""
_NAME = r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*"
_AT_THE_END = re.compile(_NAME + r")(?::(?: (.*))?)?$")
_ALONE = re.compile(
    r"(?:E {2,})?"
    + _NAME
    + r"(?:Error|Exception|Interrupt|Exit|Exceeded|NotFound|Failed|Failure))(?::(?: (.*))?)?$"
)
"""Pattern of an exception in a line without a traceback before it."""
_HANDED_ON = re.compile(r"Caught \w+ in (DataLoader worker|replica|pin memory)|^Traceback \(most")
"""Pattern of an exception that is raised again for another process."""
_LIBRARY = re.compile(
    r"(?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d[^/\\]*[/\\]|[/\\]bin[/\\][\w-]+$|^<"
)

_FOLDERS = re.compile(r"(?:site|dist)-packages[/\\]|^/.*/nodes/\d+/source/")
"""Pattern of the beginning that a short place leaves out: folders of packages, and of a local node."""

_MAX_RANKS_NAMED = 8

(
    EXCEPTION,
    LINE_FROM_OUTSIDE,
    SYMPTOM,
    LINE_OF_SYMPTOM,
    EXCEPTION_OF_THREAD,
    ERROR_LINE,
    BARE_EXCEPTION,
    LINE,
    LINE_OF_TOOL,
    WARNING,
    CONSEQUENCE,
    LINE_OF_CONSEQUENCE,
    UNKNOWN_LINE,
    HARMLESS,
) = range(14)
"""Kinds of candidates, the most likely cause first."""
NOT_FATAL = (LINE_OF_TOOL, WARNING, UNKNOWN_LINE, HARMLESS)
"""Kinds that a program outlives if it says that it has done its work."""

_TERMINATED = next(rule for rule in RULES if rule.name == "terminated")
"""The rule of a signal that a launcher sends to the processes that remain."""

ERROR_LIKE = re.compile(
    r"\b\w*(Error|Exception)\b(?! ?[=:] ?[\d.]+\b|[ |]{1,12}\d+\.\d| rate)|\b\w+Failed\b"
    r"|(?<!\b0 )\b(errors?|fatal|failed|failure|killed|terminated|evicted|abort\w*|panic|denied|mismatch)\b(?!-)"
    r"(?! ?[=:] ?[\d.]+\b|[ |]{1,12}\d+\.\d| rate)|\bE\d{4} ",
    re.IGNORECASE,
)
FROM_OUTSIDE = re.compile(
    r"\bXid\b|\bECC\b|\bDBE\b|fallen off the bus|NVLink|NVRM|NCCL WARN|\boom\b|\boom[-_]|OOMKilled"
    r"|Out of memory: Kill|Memory cgroup|OutOfMemoryHandler|^(slurmstepd|srun|sbatch|salloc): "
    r"|DUE TO |JobState=|Evicted|[Pp]reempt|NotReady|\bmlx5\b",
)
"""Pattern of lines of a kernel, an engine or a scheduler: they say why a process ended."""
TOOL = re.compile(
    r"(?:[\w./-]+: (?:line )?\d+: )?[a-z./][\w./+-]{0,40}: .*"
    r"(?:No such file or directory|Permission denied|No space left on device|Is a directory"
    r"|(?:command )?not found|Read-only file system|No such process)$"
)
"""Pattern of a message of a shell or of a tool such as `cp`."""


@dataclass(slots=True)
class Frame:
    """One call of a traceback."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def place(self) -> str:
        """Place such as `train.py:41`, or `torch/nn/functional.py:2238` in a package."""
        return f"{_FOLDERS.split(self.file)[-1]}:{self.line}"


@dataclass(slots=True)
class Raised:
    """Exception with the innermost frames of its traceback, the innermost last."""

    name: str
    """Name of its class without the module."""
    message: str
    frames: tuple[Frame, ...] = ()
    is_leaf: bool = False
    """True for an exception within a group."""
    ends_program: bool = False
    """True if nothing caught it: its traceback begins at the top of a module."""

    @property
    def own_frame(self) -> Frame | None:
        """Innermost frame of the program itself; None if only frames of packages are known."""
        for frame in reversed(self.frames):
            if not _LIBRARY.search(frame.file):
                return frame

        return None

    @property
    def place(self) -> str:
        """Place such as `train.py:41, in torch/nn/functional.py:2238`; empty if unknown."""
        if not self.frames:
            return ""

        own_frame = self.own_frame
        last = self.frames[-1]
        if own_frame is None or own_frame is last:
            return last.place

        return f"{own_frame.place}, in {last.place}"

    @property
    def described(self) -> str:
        """Text for rules: `KeyError: 'optimizer' < load in train.py:12: state['optimizer'] < …`."""
        message = self.message[:_MAX_TEXT].replace("<", "(")
        parts = [f"{self.name}: {message}"]
        for frame in reversed(self.frames):
            part = f"{frame.function} in {frame.file}:{frame.line}"
            if len(parts) == 1:
                part += f": {frame.code.replace('<', '(')}"

            parts.append(part)

        return " < ".join(parts)


@dataclass(slots=True)
class _Traceback:
    """Traceback that is being read."""

    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))
    has_header: bool = False
    is_ignored: bool = False
    """True if Python only prints it, such as an exception in a destructor."""
    mark: str = ""
    """Text before its header, which a logger may put before each of its lines."""
    indent: int = 2
    """Indentation of its frames; 0 if a log has lost it."""
    wants_code: bool = False
    is_of_program: bool = False
    """True if its outermost frame is the top of a module."""


class TracebackReader:
    """Reader of the tracebacks of all ranks, whose lines may be mixed."""

    def __init__(self) -> None:
        self._open: dict[object, _Traceback] = {}
        self._ignored: set[object] = set()
        self.is_ignored = False
        """True if the last line belongs to a traceback that Python only prints."""

    def read(self, text: str, key: object) -> Raised | bool:
        """Return the exception at the end of a traceback, or whether a line belongs to one.

        `key` identifies the rank.
        """
        if _SEPARATOR.match(text):
            self._open.pop(key, None)
            return True

        is_in_group = bool(_IN_GROUP.match(text)) and not _BOXED.match(text)
        if is_in_group:
            text = _IN_GROUP.sub("", text)

        traceback = self._open.get(key)
        self.is_ignored = (traceback is not None and traceback.is_ignored) or key in self._ignored
        raised = self._read(text, key)

        if is_in_group and isinstance(raised, Raised) and not GROUP.search(raised.name):
            raised.is_leaf = True

        return raised

    def _read(self, text: str, key: object) -> Raised | bool:
        traceback = self._open.get(key)
        mark, header, _ = text.partition(_HEADER)
        if header:
            if len(self._open) < MAX_OPEN:
                is_ignored = key in self._ignored
                self._open[key] = _Traceback(has_header=True, is_ignored=is_ignored, mark=mark)

            self._ignored.discard(key)
            return True

        if _IGNORED.search(text) and len(self._ignored) < MAX_OPEN:
            self._ignored.add(key)
            return False

        if traceback is not None:
            text = text.removeprefix(traceback.mark)
        if frame := _FRAME.match(text) or _NOTEBOOK.match(text) or _BOXED.match(text):
            return self._add(traceback, frame, key)
        if traceback is None:
            return _raised(_ALONE.match(text.lstrip()), ())

        stripped = text.lstrip()
        is_code = traceback.wants_code and traceback.indent == 0 and not _ALONE.match(text)
        is_inside = _INSIDE.match(text) and not (
            len(text) - len(stripped) < traceback.indent and _ALONE.match(stripped)
        )

        if is_code or is_inside:
            if traceback.wants_code and traceback.frames:
                traceback.frames[-1].code = stripped[:_MAX_TEXT]
                traceback.wants_code = False

            return True

        del self._open[key]
        if traceback.is_ignored:
            return True

        pattern = _AT_THE_END if traceback.has_header else _ALONE
        raised = _raised(pattern.match(stripped), tuple(traceback.frames))
        if isinstance(raised, Raised) and len(raised.frames) > 1:  # one frame: a `try` of a module
            raised.ends_program = traceback.is_of_program

        return raised

    def _add(self, traceback: _Traceback | None, frame: re.Match[str], key: object) -> bool:
        if traceback is None and len(self._open) < MAX_OPEN:
            traceback = self._open[key] = _Traceback()
        if traceback is not None:
            function = (frame[4] or "").strip()[:_MAX_TEXT]
            if not traceback.frames and traceback.has_header:
                traceback.is_of_program = function == "<module>"
            traceback.frames.append(Frame(frame[2][-_MAX_TEXT:], int(frame[3][:9]), function))
            traceback.indent = len(frame[1])
            traceback.wants_code = True

        return True


def _raised(match: re.Match[str] | None, frames: tuple[Frame, ...]) -> Raised | bool:
    """Return the exception of a line; False for none, or one of another process."""
    if match is None or _HANDED_ON.search(match[2] or ""):
        return False
    return Raised(match[1].rpartition(".")[2], (match[2] or "")[:500], frames)


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
    is_of_thread: bool = False
    """True if it ended a thread: harmless, unless the process then failed."""
    is_outlived: bool = False
    """True for an exception of a thread, if progress or words of success came after it."""
    is_mention: bool = False
    """True if a line only mentions the exception."""
    more: str = ""
    """Next lines of its message."""
    chain: list[Candidate] = field(default_factory=list)
    """Exceptions that led to it, or that its group holds, the nearest first."""
    is_direct: bool = False
    """True for a chain by `raise … from` or of a group: its end is the cause."""

    @property
    def members(self) -> list[Candidate]:
        """Return itself and its chain, the likely cause first."""
        members = [self, *self.chain]
        if not self.is_direct:
            return members

        return members[::-1]

    def explain(self) -> None:
        """Take the rule of the first member that says most."""
        rules = [member.rule for member in self.members if member.rule is not None]
        self.rule = min(rules, key=_detail, default=None)

    @property
    def is_consequence(self) -> bool:
        """True if another process caused it."""
        return self.rule is not None and self.rule.is_consequence

    @property
    def is_symptom(self) -> bool:
        """True if it shows how a process ended and not why."""
        return self.rule is not None and self.rule.is_symptom

    @property
    def has_frames(self) -> bool:
        """True if a traceback of it was read."""
        return any(member.raised and member.raised.frames for member in self.members)

    @property
    def ends_program(self) -> bool:
        """True for an exception that nothing caught, so that its program ended."""
        is_logged = self.is_harmless or self.is_warning
        return self.raised is not None and self.raised.ends_program and not is_logged

    @property
    def kind(self) -> int:
        """Return what it is; the likelier a kind is the cause, the lower.

        An exception comes first. If it only shows how a process ended, a line of the kernel, an
        engine or a scheduler says more; a line of anything else may be older and harmless.
        """
        is_exception = self.raised is not None and not self.is_mention
        if self.is_harmless:
            return HARMLESS
        if self.rule is SUMMARY or (self.rule is _TERMINATED and not is_exception):
            return UNKNOWN_LINE
        if self.is_consequence:
            return CONSEQUENCE if is_exception else LINE_OF_CONSEQUENCE
        if self.is_warning:
            return WARNING
        if self.is_of_thread:
            return EXCEPTION_OF_THREAD
        if self.rule is None and is_exception:
            return EXCEPTION if self.has_frames else BARE_EXCEPTION
        if self.rule is None:
            return UNKNOWN_LINE
        if self.is_symptom:
            return SYMPTOM if is_exception else LINE_OF_SYMPTOM
        if is_exception:
            return EXCEPTION
        is_from_outside = self.line.source == "platform" or FROM_OUTSIDE.search(self.line.text)
        if is_from_outside:
            return LINE_FROM_OUTSIDE

        if TOOL.match(self.line.text):
            return LINE_OF_TOOL
        if ERROR_LIKE.search(self.line.text):
            return ERROR_LINE

        return LINE

    @property
    def score(self) -> tuple[int, int]:
        """Return the sort key: the most likely cause first, which is the last of mere lines."""
        kind = self.kind
        if kind in (ERROR_LINE, LINE) and self.raised is None:
            return kind, -self.order

        return kind, self.order


@dataclass(slots=True)
class Consequence:
    """Consequence of the root cause, or a symptom of it."""

    rule: Rule
    ranks: set[int] = field(default_factory=set)
    count: int = 0

    @property
    def sentence(self) -> str:
        """Sentence such as `a collective operation timed out: … (rank 0, 1, 2)`."""
        if not self.ranks:
            return self.rule.cause

        shown = ", ".join(map(str, sorted(self.ranks)[:_MAX_RANKS_NAMED]))
        if len(self.ranks) > _MAX_RANKS_NAMED:
            shown += ", …"

        word = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{self.rule.cause} ({word} {shown})"


def _detail(rule: Rule) -> tuple[bool, bool, int]:
    """Return the sort key of rules of one failure: a cause first, then a detailed symptom."""
    at = 0
    if rule.is_symptom:
        at = RULES.index(rule)

    return rule.is_consequence, rule.is_symptom, at
