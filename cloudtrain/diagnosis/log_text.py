"""Lines of a log as evidence, and the reader of a log file or a pipe.

Lines lose colours, overwritten parts and marks of ranks. A log may be hostile: huge, not text at
all, one endless line, compressed to a thousandth. Its use of memory is bounded.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

MAX_CHARS = 2_000
"""Maximum characters of a line; the rest is cut off."""
_MAX_BINARY = 0.04
"""Maximum share of control characters in text; in random bytes it is a tenth."""

_ESCAPES = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]"
    # colours as notebooks and shells write them
    r"|(?:#033|\^\[|\\x1b|\\033|\\u001b|\?)\[\d{0,3}(?:;\d{1,3}){0,4}m"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")
_BINARY = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters of binary data; progress bars contain backspaces."""
_TIME = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
_PREFIX = re.compile(
    rf"(?:{_TIME}|\[(?:rank|default|local rank )? ?(?P<a>\d+)\]:?"  # [rank3]: [3]: [default3]:
    # mpirun's [1,3]<stderr>:, SageMaker's
    r"|\[\d+,(?:mpirank:)?(?P<b>\d+)(?:,[\w-]{1,40})?\]<std(?:out|err)>:?"
    r"|rank ?(?P<c>\d+):(?= )|(?P<d>\d{1,6}):(?= )"  # srun -l
    # docker compose, SageMaker's local mode
    r"|\[node (?P<n>\d+)\]|(?:algo|node|worker|master|ip)-[\w.-]{1,80} ?\|"
    # Kubeflow, Ray
    r"|\[[\w-]+-(?:worker|master|launcher)-\d+\]|\((?:\w+ )?pid=\d+(?:, ip=[\d.]+)?\)"
    # accelerate test, Kubernetes
    r"|\[(?:torchrun|std(?:out|err))\]|std(?:out|err):(?= )|std(?:out|err) [FP](?= )"
    r"|(?:(?:node|worker|host|ip)-?\d[\w.-]{0,60}|(?:\d{1,3}\.){3}\d{1,3}):(?= )"  # pdsh
    r"|\| ?\d{13} ?\||[\w.-]{1,200}/algo-\d+-\d+(?= )"  # aws logs, aws logs tail
    r")[ \t]?"
)
_MAX_PREFIXES = 6
_FILE_MARK = re.compile(r"==> (\S.{0,200}) <==$|Streaming (\S{1,200})$")
"""Pattern of a line above the lines of a file: of `tail`, and of Azure ML."""
_OF_FILE = re.compile(r"([\w./-]{1,200}\.(?:log|txt|out|err)):(?:\d{1,9}:)?(?! \S|\d{1,9}: )")
"""Pattern of the name of a file before each of its lines, as `grep` prints it."""
_RANK_OF_FILE = re.compile(
    r"(?:rank|process|worker|task|std(?:out|err))[-_]?(\d{1,6})\b|attempt_\d+/(\d{1,6})/"
)
_RANK_INSIDE = re.compile(r"\[[^\]]{0,80}\bRank (\d{1,6})\]")  # torch's own: [PG 0 Rank 3]

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log or a message that may show a failure."""

    text: str
    """Printed text without its prefix, such as a time or a rank."""
    source: str = ""
    """Source of the line: `train.log`, `node-1.log`, `platform`, `launcher`."""
    line: int = 0
    """Line number in the source, from 1; 0 without line numbers."""
    rank: int | None = None
    node: int | None = None
    stream: str = ""
    """File of the line, if several are in one source."""

    @property
    def place(self) -> str:
        """Source and rank, such as `train.log:12`, `rank 3 (node 1)`, or both."""
        if self.line:
            where = f"{self.source}:{self.line}"
        else:
            where = self.source

        if self.rank is None:
            return where

        who = f"rank {self.rank}"
        if self.node is not None:
            who += f" (node {self.node})"
        if not where:
            return who

        return f"{who}, {where}"


def evidence_of(
    raw: str,
    source: str,
    line: int,
    rank: int | None = None,
    node: int | None = None,
    stream: str = "",
) -> list[Evidence]:
    """Return the parts of a raw line: several if it overwrites itself, as progress bars do.

    Binary data has none.
    """
    evidence = []
    for part in raw[: 4 * MAX_CHARS].split("\r"):
        plain = _ESCAPES.sub("", part)
        text = _CONTROLS.sub("", plain).rstrip()[:MAX_CHARS]
        if len(text) < len(plain) and _is_binary(plain):
            continue

        text, own_rank, own_node = _without_prefixes(text)
        if text:
            evidence.append(
                Evidence(
                    text,
                    source,
                    line,
                    rank if own_rank is None else own_rank,
                    node if own_node is None else own_node,
                    stream,
                )
            )

    return evidence


def _is_binary(text: str) -> bool:
    text = text.lstrip("\0")  # from a log that was emptied while it was open
    return "\0\0\0" in text or len(_BINARY.findall(text)) > max(1, _MAX_BINARY * len(text))


def _without_prefixes(text: str) -> tuple[str, int | None, int | None]:
    """Return a line without times and marks before it, and its rank and node."""
    rank = node = None
    at = 0
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text, at)
        if match is None:
            break

        at = match.end()
        number = match["a"] or match["b"] or match["c"] or match["d"]
        if number and len(number) < 7:
            rank = int(number)
        if match["n"] and len(match["n"]) < 7:
            node = int(match["n"])

    if rank is None and (rank_match := _RANK_INSIDE.search(text, at)):
        rank = int(rank_match[1])

    return text[at:], rank, node


def read_log(file: IO[bytes], source: str, notes: list[str]) -> Iterator[Evidence]:
    """Yield the cleaned lines of a log. Append to `notes` what was left out."""
    odd = 0
    count = 0
    marked = ""
    blocks = _plain(iter(lambda: file.read(_BLOCK), b""), notes)

    for number, raw in _numbered_lines(_ends(blocks, notes)):
        if not raw.strip(b"\0 \t\r"):
            continue

        whole = raw.decode("utf-8", "replace").rstrip("\r")
        if mark := _FILE_MARK.match(whole):
            marked = mark[1] or mark[2]
            continue

        name = marked
        if mark := _OF_FILE.match(whole):
            name = mark[1]
            whole = whole[mark.end() :]

        texts = _messages(whole)
        match = _RANK_OF_FILE.search(name)
        rank = int(match[1] or match[2]) if match else None
        lines: list[Evidence] = []
        for text in texts:
            lines += evidence_of(text, source, number, rank, stream=name)

        odd += not lines and any(text.strip() for text in texts)
        count += 1
        yield from lines

    if odd > count // 2:
        notes.append(
            "most of it is not text: is it a log? One that is packed otherwise than by gzip must be"
            " unpacked first"
        )
    elif odd == 1:
        notes.append("1 line that is not text was left out")
    elif odd:
        notes.append(f"{odd} lines that are not text were left out")


def _plain(blocks: Iterator[bytes], notes: list[str]) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file."""
    first = next(blocks, b"")
    blocks = _with_first(first, blocks)
    if not first.startswith(_GZIP):
        return blocks

    return _unzipped(blocks, notes)


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

            if member.eof:
                remainder = member.unused_data.lstrip(b"\0")
            else:
                remainder = member.unconsumed_tail

    while not member.eof and (plain := member.decompress(b"", _BLOCK)):
        yield plain

    if not member.eof:
        notes.append("the compressed log is not complete: its end is missing")


def _messages(line: str) -> list[str]:
    """Return a line, or the lines of its message if it is a record in JSON."""
    if not line.lstrip().startswith(("{", "[", '"')) or not (messages := _MESSAGE.findall(line)):
        return [line]

    level = _LEVEL.search(line)
    mark = ""
    if level and len(messages) == 1:
        mark = f"{level[1].upper()}: "

    lines: list[str] = []
    for text in messages:
        lines += [mark + part for part in _unquoted(text).split("\n") if part]

    return lines


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
        notes.append(left_out_note(bytes_left_out))

    for block in tail:
        yield block, lines_left_out
        lines_left_out = 0


def left_out_note(size: int) -> str:
    """Return the note about bytes between the beginning and the end of a log."""
    return f"{max(1, size >> 20)} MiB in the middle of the log were not read"


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
