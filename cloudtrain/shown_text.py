"""Text for people: secrets masked, characters escaped that control or reorder it, short lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain_wire.secret_values import masker

MAX_LISTED = 5
"""Maximum number of files in an error or a note."""

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, C1 among them
    # direction: marks, embeddings, overrides, isolates
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    # line separators, and invisible characters
    "\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e007f\ud800-\udfff]"  # tags; unpaired surrogates
)


def shown(text: str) -> str:
    """Return a text with `***` for secrets, and with unsafe characters as escapes."""
    return escaped(masker.mask_text(text))


def escaped(text: str) -> str:
    """Return a text with `\\x1b` for an escape character, for example. Line ends and tabs stay."""
    return _UNSAFE.sub(_escape, text)


def escaped_json(text: str) -> str:
    """Return JSON text with unsafe characters as escapes of JSON."""
    return _UNSAFE.sub(_escape_in_json, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"

    return f"\\U{code:08x}"


def _escape_in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    first = ", ".join(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        first += f" and {len(names) - MAX_LISTED} more"

    return first
