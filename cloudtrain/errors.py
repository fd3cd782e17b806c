"""Issues, and all errors for users, with their exit codes.

An issue is a diagnostic: what is wrong, where, and what to do about it.

    CloudtrainError            1
     ├─ UsageError             2   a wrong command, flag or setting
     │   ├─ SpecError          2   mistakes in job.yaml, all of them, each with its place
     │   └─ SourceError        2   a source folder that cannot be archived
     ├─ RunNotFound            2   no run of that name
     ├─ RefusedError           3   a check said no before anything was spent
     ├─ RunExists              3   that run id is taken: nothing was started
     ├─ StorageError           4   the disk: full, read-only, not ours
     ├─ CloudError             4   the cloud or the network
     └─ JobFailed              1   the job itself (Run.result raises it)

A message says what, where and why; `hint` is the next step. Any other exception is a bug and
keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

Keys = tuple[str | int, ...]
"""Path of a value: `("resources", "gpu", 0)`."""

NOTHING_STARTED = "nothing was started"
"""Text for `Outcome.NOT_STARTED` in messages."""

DENIED = "Denied"
"""Code of a CloudError for a missing permission if a cloud has several names for it."""

DENIED_CODES = frozenset(
    {DENIED, "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
)
"""All codes for a missing permission."""

_ABSENT = re.compile("NotFound|NoSuch|NoWorkspace|404|Malformed")
"""Codes of services that know no such thing."""

NAME_TAKEN = "NameTaken"
"""Code of a CloudError if a different job has this name."""


def dotted(keys: Keys) -> str:
    """Return `resources.gpu[0]` for `("resources", "gpu", 0)`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            path += f".{key}"

    return path.lstrip(".")


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
        if not self.hint:
            return self.line()

        return f"{self.line()}\n  hint: {self.hint}"


def warning(message: str, hint: str | None = None, *, path: Keys = (), origin: str = "") -> Issue:
    """Return an issue that does not refuse the job."""
    return Issue(path, message, hint, severity="warning", origin=origin)


def did_you_mean(word: str, candidates: Iterable[str], similarity: float = 0.6) -> str:
    """Return ` (did you mean 'nodes'?)`, or "" if no candidate is similar.

    `similarity`: the least one, 1 for the same word.
    """
    matches = nearest(word, candidates, similarity=similarity)
    if not matches:
        return ""

    return f" (did you mean {matches[0]!r}?)"


def nearest(
    word: str, candidates: Iterable[str], count: int = 1, similarity: float = 0.6
) -> list[str]:
    """Return the most similar candidates, best first. Case does not matter."""
    from difflib import get_close_matches  # needed only for a mistake

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(word.lower(), by_lower, n=count, cutoff=similarity)
    return [by_lower[match] for match in matches]


class Outcome(Enum):
    """State of a request after its call failed."""

    REFUSED = "refused"
    """The call had no effect."""
    UNKNOWN = "unknown"
    """The call may have had an effect: no answer arrived."""
    NOT_STARTED = "not_started"
    """No job exists, and none will start."""


class CloudtrainError(Exception):
    """Base of all errors except bugs. `hint` is the user's next step."""

    exit_code = 1
    lacks_machines = False
    """True if the cloud refused only this type of machine: another one may be free."""

    def __init__(
        self, problem: str, *, hint: str | None = None, outcome: Outcome = Outcome.REFUSED
    ) -> None:
        super().__init__(problem)
        self.what = problem
        """Description of what failed, where and why."""
        self.hint = hint
        self.outcome = outcome

    @property
    def message(self) -> str:
        """Return the problem, with a note if the job certainly did not start."""
        if self.outcome is Outcome.NOT_STARTED:
            return f"{self.what}; {NOTHING_STARTED}"
        return self.what

    def __str__(self) -> str:
        return self.message

    def render(self) -> str:
        """Return the text for users: the message, then the hint on its own line."""
        if not self.hint:
            return self.message

        return f"{self.message}\nhint: {self.hint}"


class UsageError(CloudtrainError):
    """A wrong command, flag or setting."""

    exit_code = 2


class SpecError(UsageError):
    """All mistakes in a spec or a settings file: `issues`, each at its line."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__("\n".join(issue.render() for issue in self.issues))


class SourceError(UsageError):
    """The source folder cannot be archived, or changed during packing."""


class RunNotFound(CloudtrainError):
    """No run has this id, or several match the prefix."""

    exit_code = 2


class RefusedError(CloudtrainError):
    """A check refused the job before it started or cost anything. `issues`: all reasons."""

    exit_code = 3

    def __init__(
        self,
        problem: str,
        *,
        hint: str | None = None,
        outcome: Outcome = Outcome.REFUSED,
        issues: Sequence[Issue] = (),
    ) -> None:
        super().__init__(problem, hint=hint, outcome=outcome)
        self.issues = tuple(issues)


class RunExists(RefusedError):
    """The run id is taken. The job was not started again."""

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        super().__init__(problem, hint=hint, outcome=Outcome.NOT_STARTED)


class StorageError(CloudtrainError):
    """The local disk cannot be read or written: full, read-only, not ours."""

    exit_code = 4


class CloudError(CloudtrainError):
    """The cloud or the network failed, or refused the call."""

    exit_code = 4

    def __init__(
        self,
        problem: str,
        *,
        hint: str | None = None,
        code: str = "",
        transient: bool = False,
        outcome: Outcome = Outcome.REFUSED,
    ) -> None:
        super().__init__(problem, hint=hint, outcome=outcome)
        self.code = code
        """Error code of the cloud."""
        self.transient = transient
        """True if a retry may help."""

    @property
    def is_denied(self) -> bool:
        """True if a permission is missing."""
        return self.code in DENIED_CODES

    @property
    def is_absent(self) -> bool:
        """True if the service knows no such thing."""
        return _ABSENT.search(self.code) is not None


class ErrorKind(NamedTuple):
    """A kind of a cloud's errors, and what it means for the request."""

    words: str
    hint: str
    code: str = ""
    transient: bool = False
    outcome: Outcome = Outcome.REFUSED

    def error(self, where: str, answer: object, code: str = "") -> CloudError:
        """Return the error of a call. `answer`: the cloud's own message; `code`: its code."""
        return CloudError(
            f"{where}: {self.words}: {answer}",
            hint=self.hint,
            code=code or self.code,
            transient=self.transient,
            outcome=self.outcome,
        )


def unreadable(where: str, problem: str) -> CloudError:
    """Return the error for an answer that a proxy sent, or that is cut off or empty."""
    return CloudError(
        f"{where}: the answer cannot be read: {problem}",
        hint=(
            "try again in a moment; if it persists, check for a proxy or a login page in the"
            " network"
        ),
        code="Unreadable",
        transient=True,
        outcome=Outcome.UNKNOWN,
    )


class JobFailed(CloudtrainError):
    """The job ran and failed. The message is the root cause: rank, exception, place."""


for _error in (
    CloudtrainError,
    UsageError,
    SpecError,
    SourceError,
    RunNotFound,
    RefusedError,
    RunExists,
    StorageError,
    CloudError,
    JobFailed,
):
    _error.__module__ = "cloudtrain"
