"""Lines after a failure: the rest of its message, then shells, tools and launchers.

An exception, or a signal, ends its program. Lines of the same rank after that are of another
program: a script that continues, a tracker that says goodbye. None of them is the cause.
"""

from __future__ import annotations

import re
from enum import IntEnum

from cloudtrain.diagnosis.candidates import FROM_OUTSIDE, TOOL, Candidate
from cloudtrain.diagnosis.log_text import Evidence

_UNFINISHED = (":", "{", "[", ",")
"""Last characters of a message that continues in the next line."""
_CONTINUED = re.compile(r"\s|=> |nccl\w+: |Last error|(?:Bootstrap|Net) : |NET/")
"""Pattern of a further line of a message."""
_OF_ANOTHER = re.compile(r"(?:[\w./-]+: (?:line )?\d+: )?[a-z][\w./+-]{0,40}(?: failed)?: ")
"""Pattern of a line with the name of a program in front, such as `wandb: ` or `upload failed: `."""
_TEARDOWN = re.compile(r"\(core dumped\)$|^terminate called ")
"""Pattern of a line about a process that ends itself after a failure."""


class End(IntEnum):
    """Knowledge of the end of a rank."""

    NONE = 0
    REPORTED = 1
    """A launcher or a peer says that it ended: a signal says more."""
    FAILED = 2
    """An exception or a signal ended it."""


def end_of(candidate: Candidate) -> End:
    """Return the end that a candidate shows."""
    if candidate.is_harmless:
        return End.NONE
    if candidate.is_consequence:
        return End.REPORTED
    if candidate.is_symptom:
        return End.FAILED
    if candidate.raised is not None and not candidate.is_warning:
        return End.FAILED

    return End.NONE


def is_late(candidate: Candidate, end: End) -> bool:
    """Return True for a line that another program printed after this end."""
    rule = candidate.rule
    if end is End.NONE or rule is None:
        return False
    if candidate.has_frames or candidate.chain:
        return False

    text = candidate.line.text
    if rule.is_consequence:
        return True
    if FROM_OUTSIDE.search(text):
        return False

    return end is End.FAILED or is_of_another(text)


def is_teardown(text: str) -> bool:
    """Return True for a line that follows from any failure before it."""
    return bool(TOOL.match(text) or _TEARDOWN.search(text))


def is_of_another(text: str) -> bool:
    """Return True for a line with the name of a program in front, which may be another one."""
    return bool(_OF_ANOTHER.match(text)) and not _is_continued(text)


def _is_continued(text: str) -> bool:
    """Return True for a further line of a message, or a word of the kernel or an engine."""
    return bool(_CONTINUED.match(text) or FROM_OUTSIDE.search(text))


def explains(line: Evidence, candidate: Candidate) -> bool:
    """Return True if a line is of the message of the candidate above, or says why it ended."""
    if is_of_another(line.text):
        return False
    if not candidate.has_frames or _is_continued(line.text):
        return True

    has_message = candidate.raised is not None and bool(candidate.raised.message)
    return not has_message or candidate.line.text.endswith(_UNFINISHED)
