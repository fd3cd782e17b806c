"""What a provider is: the protocol each file in providers/ follows, its values, and how one is found by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.planning import Plan, Target
    from cloudtrain.runs import RunFolder, RunState
    from cloudtrain.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The provider's own document, in its own words: what `plan --json` prints and what `start` sends."""

    provider: str
    document: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check has to say. An error refuses the job, a warning is shown."""

    severity: str
    """error or warning."""
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's log."""

    time: float
    """Seconds since 1970."""
    node: int
    source: str
    """`rank 3`, `node 0` (the launcher), `torchrun`; empty when nobody said."""
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that printed it; None for the launcher's and torchrun's own lines."""
        return int(self.source[5:]) if self.source.startswith("rank ") else None


_TAG = re.compile(r"\[(rank \d+|node \d+|local rank \d+|torchrun)\] ?")


def log_line(time: float, node: int, raw: str) -> LogLine:
    """A line as the launcher wrote it, its mark taken apart."""
    match = _TAG.match(raw)
    return LogLine(time, node, match[1], raw[match.end() :]) if match else LogLine(time, node, "", raw)


class Provider(Protocol):
    """One place where jobs run. Everything up to `render` is pure; everything after it is an effect."""

    name: str

    def target(self, settings: Settings) -> Target:
        """The target that these settings mean. No network."""
        ...

    def checks(self, plan: Plan) -> list[Finding]:
        """What stands in the way, as far as this machine can tell, before anything is spent."""
        ...

    def render(self, plan: Plan) -> Request:
        """The request for a plan. Pure."""
        ...

    def start(self, request: Request, run: RunFolder, archive: Path) -> dict[str, Any]:
        """Start the job; the answer finds it again. Idempotent: the remote name is the run id."""
        ...

    def observe(self, run: RunFolder, state: RunState) -> list[dict[str, Any]]:
        """Events that the run folder does not hold yet, such as the end of a job nobody watched."""
        ...

    def logs(self, run: RunFolder, cursor: Mapping[str, Any]) -> tuple[list[LogLine], Mapping[str, Any]]:
        """The log lines of all nodes after a cursor (empty: from the start), and the next cursor."""
        ...

    def stop(self, run: RunFolder, state: RunState) -> None:
        """Ask the job to stop: a checkpoint, then the end. Asking twice does no harm."""
        ...

    def results(self, run: RunFolder, state: RunState) -> Mapping[str, Path]:
        """What the job left, by name: model, output, checkpoints; brought to this machine if need be."""
        ...


def provider_names() -> tuple[str, ...]:
    """The providers at hand: ours by their files, others by the entry point group `cloudtrain.providers`."""
    return tuple(sorted(_our_names() | set(_third_party())))


def get_provider(name: str) -> Provider:
    """The provider of that name. UsageError names those at hand."""
    if name in _our_names():
        provider: Provider = import_module(f"cloudtrain.providers.{name}").Provider()
        return provider
    others = _third_party()
    if name in others:
        return others[name].load()()  # type: ignore[no-any-return]
    raise UsageError(f"there is no provider {name!r} here", hint=f"one of: {', '.join(provider_names())}")


def _our_names() -> set[str]:
    return {path.stem for path in (Path(__file__).parent / "providers").glob("*.py") if path.stem[0] != "_"}


def _third_party() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="cloudtrain.providers")}
