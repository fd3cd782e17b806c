"""Search for the rank that is missing in a collective, by torch's flight-recorder dumps.

A rank is missing if other members of its process group have entered more collectives. A rank that
waits in another group for a missing rank is a victim, not the cause. Messages between two ranks do
not count: their ranks count them differently. Source of the format:
torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain_launcher.packages.bounded_files import read_regular_file

MAX_RANKS = 65_536
MAX_BYTES = 64 << 20
# fmt: off
_PLAIN_OPERATIONS = {
    "PROTO", "STOP", "MARK", "POP", "POP_MARK", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST",
    "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}
# fmt: on
"""Operations that only build plain values; all others name, call or allocate something."""
_NAME = re.compile(r"(?:.*[_-])?(\d{1,6})(?:\.pickle|\.pkl|\.bin)?")


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation that a rank has entered."""

    group: str
    """Purpose and ranks of the process group: `EXPERT_MODEL_PARALLEL_GROUP [12, 13]`."""
    number: int
    """Number of the collective in the group."""
    operation: str
    """Name such as `all_reduce`."""
    created_ns: int
    is_done: bool


@dataclass(slots=True)
class RankDump:
    """Dump of one rank."""

    rank: int
    collectives: list[Collective] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each of its groups."""
    entered: dict[str, int] = field(default_factory=dict)
    """Last collective that it entered, by group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Collective that some ranks did not enter."""

    group: str
    number: int
    operation: str
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    created_ns: int

    @property
    def sentence(self) -> str:
        """Sentence such as `rank 12 did not come to all_to_all, number 20537 of …`."""
        return (
            f"{name_ranks(self.missing)} did not come to {self.operation}, number {self.number} of"
            f" {self.group}; {name_ranks(self.waiting)}"
            f" {'waits' if len(self.waiting) == 1 else 'wait'} for"
            f" {'it' if len(self.missing) == 1 else 'them'}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightRecord:
    """Combined result of the dumps of a job."""

    ranks: tuple[int, ...]
    """Ranks with a dump."""
    missing: tuple[int, ...]
    """Ranks that others wait for and that wait for no rank themselves."""
    collectives: tuple[Missing, ...]
    """Collectives without the missing ranks, the earliest first."""
    absent: tuple[int, ...]
    """Ranks without a dump: a failed rank may be among them."""
    mismatches: tuple[str, ...]
    """Mismatches: ranks that entered different operations as the same collective."""
    unread: tuple[str, ...]
    """Invalid files, with reasons."""

    @property
    def sentence(self) -> str:
        """Sentence about the missing ranks; empty if no rank is missing."""
        return self.collectives[0].sentence if self.collectives else ""


def name_ranks(ranks: Iterable[int]) -> str:
    """Return a text such as `rank 3` or `ranks 3, 4`; of many ranks the first eight."""
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:8])) + (
        f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    )
    return f"{'rank' if len(listed) == 1 else 'ranks'} {shown}"


def dump_files(folder: Path) -> dict[int, Path]:
    """Return the files of a folder by the rank at the end of their name: `rank_3`, `_dump_3`."""
    dumps: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file() and not path.is_symlink() and len(dumps) < MAX_RANKS:
            dumps.setdefault(int(match[1]), path)
    return dumps


def read_dumps(folder: Path) -> FlightRecord:
    """Read the dumps in a folder. Raise OSError if it cannot be read."""
    dumps = []
    unread = []
    for rank, path in dump_files(folder).items():
        try:
            dumps.append(parse_dump(rank, read_regular_file(path, MAX_BYTES)))
        except (ValueError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            unread.append(f"{path.name}: {why}")
    return analyse(dumps, unread)


def parse_dump(rank: int, data: bytes) -> RankDump:
    """Read one rank's dump in torch's format. Raise ValueError for other data."""
    try:
        value = load_plain(data)
        dump = RankDump(rank)
        groups = {str(name): _group(config) for name, config in value["pg_config"].items()}
        dump.groups = dict(groups.values())
        for entry in value["entries"]:
            name, description = entry["process_group"]
            group = groups[str(name)][0] if str(name) in groups else str(description)
            if entry.get("is_p2p") or re.search(r"\b(send|recv)\b", entry["profiling_name"]):
                continue
            number = int(entry["collective_seq_id"])
            operation = str(entry["profiling_name"]).partition(":")[2].lstrip("_") or str(
                entry["profiling_name"]
            )
            is_done = entry["state"] == "completed"
            dump.collectives.append(
                Collective(group, number, operation, int(entry["time_created_ns"]), is_done)
            )
            dump.entered[group] = max(number, dump.entered.get(group, 0))
        return dump
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"it is not a flight-recorder dump: {type(error).__name__}") from None


def _group(config: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    ranks = tuple(sorted({int(rank) for rank in json.loads(config["ranks"])}))[:MAX_RANKS]
    return (
        (
            f"{config['desc']}"
            f" {list(ranks) if len(ranks) <= 8 else f'of {len(ranks)} ranks from {ranks[0]}'}"
        ),
        ranks,
    )


def analyse(dumps: Iterable[RankDump], unread: Iterable[str] = ()) -> FlightRecord:
    """Combine the dumps of a job."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups = {name: ranks for dump in by_rank.values() for name, ranks in dump.groups.items()}
    late = []
    for name, ranks in groups.items():
        collective = _late(name, ranks, by_rank)
        if collective is not None:
            late.append(collective)
    late.sort(key=lambda collective: collective.created_ns)
    causes = _causes(late)
    members = {rank for ranks in groups.values() for rank in ranks}
    return FlightRecord(
        ranks=tuple(sorted(by_rank)),
        missing=tuple(sorted(causes)),
        collectives=tuple(
            collective for collective in late if causes.intersection(collective.missing)
        ),
        absent=tuple(sorted(members - by_rank.keys())),
        mismatches=tuple(_mismatches(by_rank.values())),
        unread=tuple(unread),
    )


def _late(group: str, ranks: Iterable[int], by_rank: Mapping[int, RankDump]) -> Missing | None:
    """Return the first collective of a group that only some of its ranks entered, or None."""
    present = [by_rank[rank] for rank in ranks if rank in by_rank]
    behind = min((dump.entered.get(group, -1) for dump in present), default=-1)
    ahead = [
        collective
        for dump in present
        for collective in dump.collectives
        if collective.group == group and collective.number > behind
    ]
    unfinished = [collective for collective in ahead if not collective.is_done]
    first = min(unfinished, key=lambda collective: collective.number, default=None)
    if first is None:
        return None
    missing = tuple(dump.rank for dump in present if dump.entered.get(group, -1) < first.number)
    waiting = tuple(dump.rank for dump in present if dump.rank not in missing)
    return Missing(
        group=group,
        number=first.number,
        operation=first.operation,
        missing=missing,
        waiting=waiting,
        created_ns=first.created_ns,
    )


def _causes(late: Iterable[Missing]) -> set[int]:
    """Return the ranks that others wait for and that wait for no missing rank; all if each waits."""
    late = list(late)
    missing = {rank for collective in late for rank in collective.missing}
    victims = {rank for collective in late for rank in collective.waiting if rank in missing}
    return missing - victims or missing


def _mismatches(dumps: Iterable[RankDump]) -> list[str]:
    """Return collectives that ranks entered as different operations."""
    operations: dict[tuple[str, int], dict[str, list[int]]] = {}
    for dump in dumps:
        for collective in dump.collectives:
            ranks = operations.setdefault((collective.group, collective.number), {}).setdefault(
                collective.operation, []
            )
            ranks.append(dump.rank)
    mismatches = []
    for (group, number), ranks_by_name in sorted(operations.items()):
        if len(ranks_by_name) > 1:
            parts = [f"{name_ranks(ranks)} in {name}" for name, ranks in ranks_by_name.items()]
            mismatches.append(f"number {number} of {group}: {', '.join(parts)}")
    return mismatches[:8]


def load_plain(data: bytes) -> Any:
    """Return the plain value in a pickle that may be hostile. Nothing in it is called.

    Raise ValueError if it is damaged or holds anything but numbers, texts, lists and dicts.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name not in _PLAIN_OPERATIONS:
                raise ValueError(f"it uses {operation.name}, which dumps do not need")
            if operation.name == "LONG_BINPUT" and int(argument or 0) > len(data):
                raise ValueError("it asks for more memory than it can need")
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        MemoryError,
    ) as error:
        raise ValueError(f"it is not a pickle: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Second barrier: refuses every class and function."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Raise ValueError."""
        raise ValueError(f"it names {module_name}.{global_name}")
