"""Strikes on the requests of one command: faults, the death of its client, and acts of others."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fakes.messages import Call, FaultKind, Request
from tests.providers.faults import PERMANENT
from tests.providers.sites import ALWAYS, Site

TRANSIENT: tuple[FaultKind, ...] = ("throttle", "error", "lost", "refused_lost")
"""Faults that a second try survives."""
FOREIGN: tuple[FaultKind, ...] = ("gateway", "proxy", "html", "truncated", "empty", "half")
"""Answers that are not the service's."""
EXECUTED: tuple[FaultKind, ...] = (
    *("lost", "late", "failed_after", "html", "truncated", "empty", "half"),
)
"""Faults after which the request may have had its effect."""
ANY: tuple[FaultKind, ...] = (*TRANSIENT, *PERMANENT, *FOREIGN, "failed_after")


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault in the requests of a command."""

    kind: FaultKind
    call: str = ""
    """The calls, by their names in `Site.calls`; empty: all."""
    nth: int = 1
    times: int = 1


@dataclass(frozen=True)
class FirstTry:
    """Each kind of request of a command goes wrong when it is tried for the first time."""

    kind: FaultKind


@dataclass(frozen=True)
class Kill:
    """The client is killed while it waits for the answer to a request."""

    call: str = ""
    nth: int = 1
    is_executed: bool = True


@dataclass(frozen=True)
class Meanwhile:
    """Somebody else acts while the client waits for the answer to a request."""

    act: str
    """Name of the act, which the command's caller knows."""
    call: str = ""
    nth: int = 1


Blow = Strike | FirstTry | Kill | Meanwhile


class Killed(BaseException):
    """The client of a command was killed."""


@dataclass
class Struck:
    """Strikes that a command met."""

    kinds: list[tuple[FaultKind, Call]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_killed: bool = False
    acts: list[str] = field(default_factory=list)

    @property
    def calls_struck(self) -> list[Call]:
        """Return the calls with a fault."""
        return [call for _, call in self.kinds]

    def of(self, *calls: tuple[str, str]) -> list[FaultKind]:
        """Return the faults in these calls."""
        return [kind for kind, call in self.kinds if call in calls]


class Wire:
    """The requests of this process to an imitated cloud, one command at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._blows: tuple[Blow, ...] = ()
        self._acts: Mapping[str, Callable[[], object]] = {}
        self._data_dir: Path | None = None
        self._count: Counter[object] = Counter()
        self.struck = Struck()

    def begin(
        self, blows: tuple[Blow, ...], data_dir: Path, acts: Mapping[str, Callable[[], object]]
    ) -> None:
        """Watch the requests of a command that works in this data folder."""
        self._blows = blows
        self._acts = acts
        self._data_dir = data_dir
        self._count.clear()
        self.struck = Struck()
        endpoint = self._site.cloud.endpoint
        for record in (endpoint.calls, endpoint.sent, endpoint.altered):
            record.clear()
        endpoint.intercept = self._befalls

    def end(self) -> Struck:
        """Return what befell the command; what its client did after its death never happened."""
        self._site.cloud.endpoint.intercept = None
        if self.struck.is_killed and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            if self._kept.exists():
                self._kept.rename(self._data_dir)
            self._site.reconnect()
        return self.struck

    def raise_if_killed(self) -> None:
        """End what a dead client still does. It waits for a network that it does not have."""
        if self.struck.is_killed:
            raise Killed

    @property
    def _kept(self) -> Path:
        """The data folder at the moment of the client's death."""
        assert self._data_dir is not None
        return self._data_dir.with_name(f"{self._data_dir.name}.kept")

    def _befalls(self, call: Call, request: Request) -> FaultKind | None:
        if self.struck.is_killed:
            return "refused_lost"

        self.struck.calls.append(call)
        self._count[call] += 1
        self._count[""] += 1
        kind = None
        for blow in self._blows:
            kind = kind or self._kind_of(blow, call, request)
        if kind is not None:
            self.struck.kinds.append((kind, call))
        return kind

    def _kind_of(self, blow: Blow, call: Call, request: Request) -> FaultKind | None:
        if isinstance(blow, FirstTry):
            # S3 gets several objects. Elsewhere a second try may have another path.
            place = request.target.partition("?")[0] if call.service == "s3" else ""
            self._count[call, place] += 1
            return blow.kind if self._count[call, place] == 1 else None

        if blow.call and self._site.calls.get(blow.call) != call:
            return None
        number = self._count[call if blow.call else ""]
        if isinstance(blow, Strike):
            return blow.kind if blow.nth <= number < blow.nth + blow.times else None
        if number != blow.nth:
            return None

        if isinstance(blow, Kill):
            self._kill()
            return "lost" if blow.is_executed else "refused_lost"
        self._act(blow.act)
        return None

    def _kill(self) -> None:
        assert self._data_dir is not None
        if self._data_dir.exists():
            shutil.copytree(self._data_dir, self._kept, symlinks=True)
        self.struck.is_killed = True

    def _act(self, name: str) -> None:
        endpoint = self._site.cloud.endpoint
        endpoint.intercept = None
        self._acts[name]()
        self.struck.acts.append(name)
        endpoint.intercept = self._befalls


def _strike_in(call: str, *kinds: FaultKind, max_times: int = ALWAYS) -> st.SearchStrategy[Blow]:
    times = [number for number in (1, 2, 3, ALWAYS) if number <= max_times]
    return st.builds(
        Strike,
        kind=st.sampled_from(kinds),
        call=st.just(call),
        nth=st.integers(1, 3),
        times=st.sampled_from(times),
    )


def blows_of_submits(acts: tuple[str, ...]) -> st.SearchStrategy[tuple[Blow, ...]]:
    """Draw what befalls a submit; most of it where the job is created and looked for."""
    create = _strike_in("create", *ANY, "late")
    look = _strike_in("look", *ANY, "unseen")
    tags = _strike_in("tags", *ANY, "unseen")
    prepare = _strike_in("prepare", *ANY)
    several: Any = st.lists(st.one_of(create, create, look, look, tags, prepare), max_size=5)
    return st.one_of(_common_blows(14, acts, ("create", "look")), several.map(tuple))


def blows_of(
    calls: tuple[str, ...], acts: tuple[str, ...] = (), max_times: int = ALWAYS
) -> st.SearchStrategy[tuple[Blow, ...]]:
    """Draw what befalls a command that makes such calls."""
    strikes = [_strike_in(call, *ANY, max_times=max_times) for call in calls]
    several: Any = st.lists(st.one_of(strikes), min_size=1, max_size=3)
    return st.one_of(_common_blows(8, acts, calls), several.map(tuple))


def _common_blows(
    requests: int, acts: tuple[str, ...], calls: tuple[str, ...]
) -> st.SearchStrategy[tuple[Blow, ...]]:
    anywhere = st.just("")
    nth = st.integers(1, requests)
    one = st.builds(Strike, kind=st.sampled_from(ANY), call=anywhere, nth=nth)
    each = st.builds(FirstTry, st.sampled_from(TRANSIENT))
    kill_at = st.one_of(
        st.tuples(anywhere, nth), st.tuples(st.sampled_from(calls), st.integers(1, 2))
    )
    kill = st.builds(lambda at, executed: Kill(at[0], at[1], executed), kill_at, st.booleans())
    choices: list[st.SearchStrategy[Any]] = [one, each, kill]
    if acts:
        choices.append(st.builds(Meanwhile, st.sampled_from(acts), anywhere, nth))
        choices.append(
            st.builds(Meanwhile, st.sampled_from(acts), st.sampled_from(calls), st.just(1))
        )
    return st.one_of(st.just(()), st.one_of(choices).map(lambda blow: (blow,)))
