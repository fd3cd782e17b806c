"""Lines of a log as evidence, without colours, overwritten parts and marks of ranks.

A line may be hostile: endless, or not text at all. Its use of memory is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARS = 2_000
"""Maximum characters of a line; the rest is cut off."""
_MAX_BINARY = 0.04
"""Maximum share of control characters in text; in random bytes it is a tenth."""


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

    @property
    def place(self) -> str:
        """Source and rank, such as `train.log:12`, `rank 3 (node 1)`, or both."""
        where = f"{self.source}:{self.line}" if self.line else self.source
        if self.rank is None:
            return where
        who = f"rank {self.rank}" + (f" (node {self.node})" if self.node is not None else "")
        return f"{who}, {where}" if where else who


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
_RANK_TOLD = re.compile(r"\[[^\]]{0,80}\bRank (\d{1,6})\]")  # torch's own: [PG 0 Rank 3]


def evidence_of(
    raw: str, source: str, line: int, rank: int | None = None, node: int | None = None
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
        named = next((match[name] for name in "abcd" if match[name]), None)
        rank = int(named) if named and len(named) < 7 else rank
        node = int(match["n"]) if match["n"] and len(match["n"]) < 7 else node
    if rank is None and (rank_match := _RANK_TOLD.search(text, at)):
        rank = int(rank_match[1])
    return text[at:], rank, node
