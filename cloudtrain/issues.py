"""One diagnostic: what is wrong, where and what to do about it, from reading a spec to a provider's
checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

Keys = tuple[str | int, ...]
"""Path of a value: `("resources", "gpu", 0)`."""


def dotted(keys: Keys) -> str:
    """`resources.gpu[0]` for `("resources", "gpu", 0)`."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).lstrip(".")


@dataclass(frozen=True, slots=True)
class Issue:
    """One diagnostic. An error refuses the job, a warning is shown."""

    path: Keys
    """The field that is to blame, `("resources", "gpu")`; empty for none, or for a file as a whole.
    """
    message: str
    hint: str | None = None
    """What to do about it."""
    _: KW_ONLY
    severity: Literal["error", "warning"] = "error"
    origin: str = ""
    """Where the value was set: `job.yaml:7:3`, `--set resources.nodes=x`, `environment
    CLOUDTRAIN_DATA_DIR`.
    """

    @property
    def field(self) -> str:
        """The path as people write it: `resources.gpu`."""
        return dotted(self.path)

    @property
    def is_error(self) -> bool:
        """Whether it refuses the job."""
        return self.severity == "error"

    def at(self, origin: str) -> Issue:
        """The same issue, with the place where its value was set."""
        return replace(self, origin=origin)

    def line(self) -> str:
        """`job.yaml:7:3: resources.gpu: unknown GPU 'A100-80' (did you mean 'A100-80GB'?)`, without
        the hint.
        """
        where, path = (
            part.replace("\n", "\\n") for part in (self.origin, self.field)
        )  # names that others chose
        return ": ".join(part for part in (where, path, self.message) if part)

    def render(self) -> str:
        """The line, then the hint on a line of its own."""
        return self.line() + (f"\n  hint: {self.hint}" if self.hint else "")


def warning(message: str, hint: str | None = None, *, path: Keys = (), origin: str = "") -> Issue:
    """An issue that does not stand in the way."""
    return Issue(path, message, hint, severity="warning", origin=origin)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'nodes'?)`, or nothing when no known word is near."""
    near = nearest(word, known)
    return f" (did you mean {near[0]!r}?)" if near else ""


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known words most like this one, the most similar first; capitals make no difference."""
    from difflib import get_close_matches  # only a mistake needs it

    by_lower = {each.lower(): each for each in known}
    return [by_lower[each] for each in get_close_matches(word.lower(), by_lower, n=count)]
