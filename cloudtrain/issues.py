"""A diagnostic: what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

Keys = tuple[str | int, ...]
"""Path of a value: `("resources", "gpu", 0)`."""


def dotted(keys: Keys) -> str:
    """Return `resources.gpu[0]` for `("resources", "gpu", 0)`."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).lstrip(".")


@dataclass(frozen=True, slots=True)
class Issue:
    """A diagnostic. An error refuses the job; a warning is only shown."""

    path: Keys
    """Wrong field, `("resources", "gpu")`; empty for a whole file or no field."""
    message: str
    hint: str | None = None
    """Next step."""
    _: KW_ONLY
    severity: Literal["error", "warning"] = "error"
    origin: str = ""
    """Place where the value was set: `job.yaml:7:3`, `--set resources.nodes=x`."""

    @property
    def field(self) -> str:
        """The path as text: `resources.gpu`."""
        return dotted(self.path)

    @property
    def is_error(self) -> bool:
        """True if this refuses the job."""
        return self.severity == "error"

    def at(self, origin: str) -> Issue:
        """Return this issue with the place where its value was set."""
        return replace(self, origin=origin)

    def line(self) -> str:
        """Return one line: `job.yaml:7:3: resources.gpu: unknown GPU 'A100-80'`. No hint."""
        # Names of files and keys may contain line breaks.
        origin = self.origin.replace("\n", "\\n")
        field = self.field.replace("\n", "\\n")
        return ": ".join(part for part in (origin, field, self.message) if part)

    def render(self) -> str:
        """Return the line, then the hint on its own line."""
        return self.line() + (f"\n  hint: {self.hint}" if self.hint else "")


def warning(message: str, hint: str | None = None, *, path: Keys = (), origin: str = "") -> Issue:
    """Return an issue that does not refuse the job."""
    return Issue(path, message, hint, severity="warning", origin=origin)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ` (did you mean 'nodes'?)`, or "" if no candidate is similar."""
    matches = nearest(word, candidates)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def nearest(word: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """Return the most similar candidates, best first. Case does not matter."""
    from difflib import get_close_matches  # needed only for a mistake

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    return [by_lower[match] for match in get_close_matches(word.lower(), by_lower, n=count)]
