"""Signals of processes in a log, in whatever form a launcher prints them."""

from __future__ import annotations

import re
import signal

_ENDED = re.compile(
    r"(?i:exit(?:ed)?(?: with)?[ _-]?(?:code|status)?|return(?:ed)? ?code|status code|code)"
    r"(?:ed| with)?\s{0,3}[:=(]{0,2}\s{0,3}(?P<code>-?\d{1,3})\b"
    r"|WTERMSIG (?P<term>\d+)|(?i:signal)[ :]\s?(?P<signal>\d+)\b|died with <Signals\.(?P<name>SIG\w+)"
)
_BY_NUMBER = {number: signal.Signals(number).name for number in (1, 2, 4, 5, 6, 7, 8, 9, 11, 15)}
_WORDS = {
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
    "Bus error": "SIGBUS",
    "Segmentation fault": "SIGSEGV",
    "Illegal instruction": "SIGILL",
    "Aborted": "SIGABRT",
}
_SHELL = re.compile(
    r"^(?:\S{1,80}: line \d+: +)?(?:\d+ )?\s*(?P<word>"
    + "|".join(_WORDS)
    + r")\b\s*(?:\(core dumped\)|$| {2,}\S|\w+\S*\s)"
)
"""Pattern of a shell's word about a process that a signal ended."""


def signal_of(text: str) -> str:
    """Return the signal that a line reports, such as `SIGKILL` for exit code 137; or ""."""
    for match in _ENDED.finditer(text):
        if match["name"]:
            return match["name"]
        if number := match["term"] or match["signal"]:
            code = int(number)
        else:
            code = int(match["code"])
            code = -code if code < 0 else code - 128
        if code in _BY_NUMBER:
            return _BY_NUMBER[code]
    shell = _SHELL.match(text)
    return _WORDS[shell["word"]] if shell else ""


def with_signal_name(text: str) -> str:
    """Return a line with the name of the signal that it reports as a number."""
    name = signal_of(text)
    return f"{text} ({name})" if name and name not in text else text
