"""Reader of a log file or a pipe: gzip or plain, lines of text or JSON of log services.

A log may be hostile: huge, one endless line, compressed to a thousandth. Its use of memory is
bounded.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from cloudtrain.diagnosis.log_text import MAX_CHARS, Evidence, evidence_of

HEAD_BYTES = 16 << 20
TAIL_BYTES = 48 << 20
"""Bytes to read at the beginning and at the end of a larger log."""
_BLOCK = 1 << 16
_MAX_LINE = 4 * MAX_CHARS
_GZIP = b"\x1f\x8b"
_MESSAGE = re.compile(r'"(?:message|log|msg|textPayload)"\s*:\s*("(?:[^"\\]|\\.)*)(?:"|\\?$)')
"""Message in a record of CloudWatch, Docker, or a logging library; the last one may be cut off."""
_LEVEL = re.compile(
    r'"(?:level|levelname|severity)"\s*:\s*"(debug|info|warn(?:ing)?)"', re.IGNORECASE
)


def read_log(file: IO[bytes], source: str, notes: list[str]) -> Iterator[Evidence]:
    """Yield the cleaned lines of a log. Append to `notes` what was left out."""
    odd = 0
    count = 0
    blocks = _plain(iter(lambda: file.read(_BLOCK), b""), notes)
    for number, raw in _numbered_lines(_ends(blocks, notes)):
        if not raw.strip(b"\0 \t\r"):
            continue
        texts = _messages(raw.decode("utf-8", "replace"))
        lines = [line for text in texts for line in evidence_of(text, source, number)]
        odd += not lines and any(text.strip() for text in texts)
        count += 1
        yield from lines

    if odd > count // 2:
        notes.append(
            "most of it is not text: is it a log? One that is packed otherwise than by gzip must be"
            " unpacked first"
        )
    elif odd:
        notes.append(
            "1 line that is not text was left out"
            if odd == 1
            else f"{odd} lines that are not text were left out"
        )


def _plain(blocks: Iterator[bytes], notes: list[str]) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file."""
    first = next(blocks, b"")
    blocks = _with_first(first, blocks)
    return _unzipped(blocks, notes) if first.startswith(_GZIP) else blocks


def _with_first(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from blocks


def _unzipped(blocks: Iterator[bytes], notes: list[str]) -> Iterator[bytes]:
    """Yield the content of a gzip file with any number of members, as far as it can be read."""
    member = zlib.decompressobj(wbits=31)
    for block in blocks:
        remainder = block
        while remainder:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            try:
                plain = member.decompress(remainder, _BLOCK)
            except zlib.error:
                notes.append(
                    "the compressed log is damaged: what comes after that place was not read"
                )
                return
            if plain:
                yield plain
            remainder = member.unused_data.lstrip(b"\0") if member.eof else member.unconsumed_tail
    while plain := member.decompress(b"", _BLOCK) if not member.eof else b"":
        yield plain
    if not member.eof:
        notes.append("the compressed log is not complete: its end is missing")


def _messages(line: str) -> list[str]:
    """Return a line, or the lines of its message if it is a record in JSON."""
    if not line.lstrip().startswith(("{", "[", '"')) or not (messages := _MESSAGE.findall(line)):
        return [line]
    level = _LEVEL.search(line)
    mark = f"{level[1].upper()}: " if level and len(messages) == 1 else ""
    return [mark + part for text in messages for part in _unquoted(text).split("\n") if part]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(f'{text}"', strict=False))
    except ValueError:  # cut off in the middle of an escape
        return text[1:]


def _ends(blocks: Iterator[bytes], notes: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yield the first and the last blocks, each with the number of lines left out before it."""
    read = 0
    for block in blocks:
        yield block, 0
        read += len(block)
        if read >= HEAD_BYTES:
            break
    tail = deque[bytes]()
    size = bytes_left_out = lines_left_out = 0
    for block in blocks:
        tail.append(block)
        size += len(block)
        while size - len(tail[0]) >= TAIL_BYTES:
            dropped = tail.popleft()
            size -= len(dropped)
            bytes_left_out += len(dropped)
            lines_left_out += dropped.count(b"\n")
    if bytes_left_out:
        notes.append(f"{max(1, bytes_left_out >> 20)} MiB in the middle of the log were not read")
    for number, block in enumerate(tail):
        yield block, 0 if number else lines_left_out


def _numbered_lines(blocks: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, from 1; of a long line its first bytes."""
    unfinished = b""
    number = 1
    for block, left_out in blocks:
        number += left_out
        *lines, unfinished = (unfinished + block).split(b"\n")
        for line in lines:
            yield number, line[:_MAX_LINE]
            number += 1
        unfinished = unfinished[:_MAX_LINE]
    if unfinished:
        yield number, unfinished
