"""Lines of a log as evidence: what anybody's program printed, without colours, overwritten parts and marks of ranks.

A log may be hostile: huge, binary, one endless line. What is read of it, and how much of a line, is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

MAX_CHARS = 2_000
"""Of a line; what is longer is cut off."""
HEAD_BYTES, TAIL_BYTES = 16 << 20, 48 << 20
"""Of a log that is larger than both, these are read: its beginning and its end."""
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that says something about a failure."""

    text: str
    """As printed, without what stands in front of it: a time, a rank."""
    source: str = ""
    """Where it was read: `train.log`, `node-1.log`, `platform`, `launcher`."""
    line: int = 0
    """Its number there, from 1; 0 where lines have no numbers."""
    rank: int | None = None
    node: int | None = None

    @property
    def place(self) -> str:
        """`train.log:12`, `rank 3 (node 1)`, or both."""
        where = f"{self.source}:{self.line}" if self.line else self.source
        if self.rank is None:
            return where
        who = f"rank {self.rank}" + (f" (node {self.node})" if self.node is not None else "")
        return f"{who}, {where}" if where else who


_ESCAPES = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]"
    r"|(?:#033|\^\[|\\x1b|\\033|\\u001b|\?)\[\d{0,3}(?:;\d{1,3}){0,4}m"  # colours as notebooks and shells write them
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")
_TIME = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
_PREFIX = re.compile(
    rf"(?:{_TIME}|\[(?:rank|default|local rank )? ?(?P<a>\d+)\]:?"  # [rank3]: [3]: [default3]:
    r"|\[\d+,(?:mpirank:)?(?P<b>\d+)(?:,[\w-]{1,40})?\]<std(?:out|err)>:?"  # mpirun's [1,3]<stderr>:, SageMaker's
    r"|rank ?(?P<c>\d+):(?= )|(?P<d>\d{1,6}):(?= )"  # srun -l
    r"|\[node (?P<n>\d+)\]|(?:algo|node|worker|master|ip)-[\w.-]{1,80} ?\|"  # docker compose, SageMaker's local mode
    r"|\[[\w-]+-(?:worker|master|launcher)-\d+\]|\((?:\w+ )?pid=\d+(?:, ip=[\d.]+)?\)"  # Kubeflow, Ray
    r"|\[(?:torchrun|std(?:out|err))\]|std(?:out|err):(?= )|std(?:out|err) [FP](?= )"  # accelerate test, Kubernetes
    r"|(?:(?:node|worker|host|ip)-?\d[\w.-]{0,60}|(?:\d{1,3}\.){3}\d{1,3}):(?= )"  # pdsh
    r"|\| ?\d{13} ?\|"  # aws logs
    r")[ \t]?"
)
_MAX_PREFIXES = 6
_RANK_TOLD = re.compile(r"\[[^\]]{0,80}\bRank (\d{1,6})\]")  # torch's own: [PG 0 Rank 3]


def evidence_of(raw: str, source: str, line: int, rank: int | None = None, node: int | None = None) -> list[Evidence]:
    """The parts of a raw line: one, or several where it overwrites itself, as progress bars do."""
    found = []
    for part in raw[: 4 * MAX_CHARS].split("\r"):
        text = _CONTROLS.sub("", _ESCAPES.sub("", part)).rstrip()[:MAX_CHARS]
        text, own_rank, own_node = _without_prefixes(text)
        if text:
            found.append(
                Evidence(
                    text,
                    source,
                    line,
                    rank if own_rank is None else own_rank,
                    node if own_node is None else own_node,
                )
            )
    return found


def _without_prefixes(text: str) -> tuple[str, int | None, int | None]:
    """A line without times and marks in front of it; the rank and the node that they name."""
    rank = node = None
    at = 0
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text, at)
        if match is None:
            break
        at = match.end()
        named = next((match[name] for name in "abcd" if match[name]), None)
        rank = int(named) if named and len(named) < 7 else rank
        node = int(match["n"]) if match["n"] and len(match["n"]) < 7 else node
    if rank is None and (told := _RANK_TOLD.search(text, at)):
        rank = int(told[1])
    return text[at:], rank, node


def read_log(file: IO[bytes], source: str, notes: list[str]) -> Iterator[Evidence]:
    """The lines of a log file or a pipe, cleaned. What is left out of a large one is said in `notes`."""
    for number, raw in _numbered_lines(_blocks(file, notes)):
        if raw and not raw.isspace():
            yield from evidence_of(raw.decode("utf-8", "replace"), source, number)


def _blocks(file: IO[bytes], notes: list[str]) -> Iterator[tuple[bytes, int]]:
    """The beginning and the end of a file in blocks, each with how many lines before it were left out."""
    read = 0
    while read < HEAD_BYTES and (block := file.read(_BLOCK)):
        read += len(block)
        yield block, 0
    kept = deque[bytes]()
    size = bytes_left_out = lines_left_out = 0
    while block := file.read(_BLOCK):
        kept.append(block)
        size += len(block)
        while size - len(kept[0]) >= TAIL_BYTES:
            gone = kept.popleft()
            size, bytes_left_out = size - len(gone), bytes_left_out + len(gone)
            lines_left_out += gone.count(b"\n")
    if bytes_left_out:
        notes.append(f"{max(1, bytes_left_out >> 20)} MiB in the middle of the log were not read")
    for number, block in enumerate(kept):
        yield block, 0 if number else lines_left_out


def _numbered_lines(blocks: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1; of a longer one only its first bytes."""
    rest, number = b"", 1
    for block, left_out in blocks:
        number += left_out
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield number, line[: 4 * MAX_CHARS]
            number += 1
        rest = rest[: 4 * MAX_CHARS]
    if rest:
        yield number, rest
