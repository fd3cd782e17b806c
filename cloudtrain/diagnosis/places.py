"""Remedy of an exception that no rule knows: whose line raised it, and what its message lacks."""

from __future__ import annotations

import re

from cloudtrain.diagnosis.candidates import Frame, Raised
from cloudtrain.diagnosis.rule import fitting

MAX_CODE = 80
"""Maximum characters of a line of code in a remedy."""

_PACKAGE = re.compile(r"(?:site|dist)-packages[/\\]([A-Za-z]\w*)")
_OF_VERSIONS = ("AttributeError", "ImportError", "NameError", "NotImplementedError", "TypeError")
"""Names of exceptions about what a program offers, not about the values that it gets."""

_LACKING = (
    (
        r"^KeyError: '(?P<what>\w{1,60})' < __getitem__ in (?:<frozen os>|[^<]*[/\\]os\.py):",
        "the environment variable {what} is not set: give it a value under env in job.yaml, or by"
        " --set env.{what}=VALUE",
    ),
    (
        r"^KeyError: (?P<what>['\"][^'\"]{1,60}['\"]|-?\d+)",
        "there is no {what} in what it reads: compare the names with those of the settings, of the"
        " data's columns or of the file",
    ),
    (
        r"^(?:AttributeError|TypeError): [^<]{0,200}\bNoneType\b",
        "a value there is None: look for the file, setting or part that was not given or not found",
    ),
    (
        r"^AttributeError: '(?:Namespace|\w*(?:Config|Args|Arguments))' object has no attribute"
        r" (?P<what>'\w{1,60}')",
        "the program's settings do not define {what}: add it to its parser or configuration, or"
        " take code and settings of one release",
    ),
    (
        r"^(?:UnboundLocalError|NameError): .{0,20}(?P<what>'\w{1,60}')",
        "nothing has set {what} before: look for the import, or for the case of the settings or"
        " data that no branch of the code handles",
    ),
    (
        r"^[^<]{0,300}\(\S{1,60}\.py, line \d+\)|^(?:SyntaxError|IndentationError)\b",
        "that file does not compile with this Python: correct it; if a package wrote it, update"
        " that package together with those that it adapts",
    ),
    (
        r"^IndexError: (?:list|tuple|string|pop)",
        "a list is empty or shorter than the index: look at what was found to fill it",
    ),
    (r"^\w+: +(?:<|$)", "it has no message: print the values of that line"),
    (
        r"< (?:__getitem__|collate_fn|_worker_loop) in |[/\\]torch[/\\]utils[/\\]data[/\\]",
        "look at the key or file of the data that it read (num_workers=0 shows which)",
    ),
)
"""Missing part, by the text of an exception and its frames."""


def remedy_of_place(raised: Raised) -> str:
    """Return what to look at, by the innermost frames and the message; empty if neither helps."""
    advice = fitting(_LACKING, raised.described)
    own_frame = raised.own_frame
    inner = raised.described
    if own_frame is not None:
        inner = inner.partition(f" in {own_frame.file}:{own_frame.line}")[0]

    packages = list(dict.fromkeys(_PACKAGE.findall(inner)))

    if raised.name in _OF_VERSIONS and len(packages) > 1:
        where = f"{packages[1]} does not fit {packages[0]}"
        advice = advice or "update both, or pin releases of them that go together"
    elif own_frame is None:
        return advice
    elif own_frame is _innermost(raised, own_frame):
        where = f"your code ({own_frame.place})"
        code = own_frame.code
        if len(code) > MAX_CODE:
            code = code[: MAX_CODE - 1] + "…"
        if code:
            where += f" stopped at `{code}`"
    else:
        where = f"your code ({own_frame.place}) called {_innermost(raised, own_frame).place}"

    return f"{where}; {advice or 'compare its values with what the message asks for'}"


def _innermost(raised: Raised, own: Frame) -> Frame:
    """Return the innermost frame that is not of Python's own start, such as `<frozen os>`."""
    frames = (frame for frame in reversed(raised.frames) if not frame.file.startswith("<frozen"))
    return next(frames, own)
