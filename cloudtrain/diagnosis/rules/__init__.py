"""Table of known failures by field, and the signals that a line reports.

The first rule that matches a line counts.
"""

from __future__ import annotations

import re
import signal

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules.clouds import ACCESS, CAPACITY, IMAGES
from cloudtrain.diagnosis.rules.communication import COMMUNICATION, CONSEQUENCES
from cloudtrain.diagnosis.rules.data import DATA, LOADERS
from cloudtrain.diagnosis.rules.hardware import HARDWARE, STORAGE
from cloudtrain.diagnosis.rules.models import CHECKPOINTS, MODELS
from cloudtrain.diagnosis.rules.program import PROCESSES, PROGRAM, SETTINGS
from cloudtrain.diagnosis.rules.tensors import MEMORY, TENSORS
from cloudtrain.diagnosis.rules.versions import BUILDS, VERSIONS

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
            if code < 0:
                code = -code
            else:
                code = code - 128
        if code in _BY_NUMBER:
            return _BY_NUMBER[code]
    shell = _SHELL.match(text)
    if not shell:
        return ""

    return _WORDS[shell["word"]]


def with_signal_name(text: str) -> str:
    """Return a line with the name of the signal that it reports as a number."""
    name = signal_of(text)
    if name and name not in text:
        return f"{text} ({name})"

    return text


FIELDS: dict[str, tuple[Rule, ...]] = {
    "Capacity, quota, time": CAPACITY,
    "Images and containers": IMAGES,
    "Rights and credentials": ACCESS,
    "Memory": MEMORY,
    "Loader": LOADERS,
    "GPUs and drivers": HARDWARE,
    "Communication": COMMUNICATION,
    "Compiling": BUILDS,
    "Models and tokenizers": MODELS,
    "Versions and packages": VERSIONS,
    "Checkpoints": CHECKPOINTS,
    "Data": DATA,
    "Storage": STORAGE,
    "Tensors": TENSORS,
    "Settings": SETTINGS,
    "Program": PROGRAM,
    "Processes": PROCESSES,
    "Consequences": CONSEQUENCES,
}
"""Rules by field."""

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for field in FIELDS.values() for rule in field),
        key=lambda rule: (rule.is_consequence, rule.is_symptom),
    )
)
"""Rules in the order in which they explain a line: a cause, then a symptom, a consequence."""

SUMMARY = next(rule for rule in RULES if rule.name == "launcher-summary")
"""The rule of a launcher's last words, which say less than any error line before them."""


def rule_of(message: str) -> Rule | None:
    """Return the rule that explains a message, or None."""
    named = with_signal_name(message)
    return next((rule for rule in RULES if rule.matches(named)), None)
