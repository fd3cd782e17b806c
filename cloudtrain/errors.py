"""Every error a user can meet, with its exit code.

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

A message says what, where and why; `hint` says what to do next. Anything that is not a
`CloudtrainError` is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.issues import Issue

NOTHING_STARTED = "nothing was started"
"""The words for `Outcome.NOT_STARTED` in messages."""


class Outcome(Enum):
    """What became of a request when the call for it failed."""

    REFUSED = "refused"
    """This call has not done it."""
    UNKNOWN = "unknown"
    """It may have been done all the same: no answer came."""
    NOT_STARTED = "not_started"
    """There is no job, and none will come of it."""


class CloudtrainError(Exception):
    """Base of all errors that are not bugs. `hint` is the user's next step, in one or a few lines."""

    exit_code = 1

    def __init__(
        self, what: str, *, hint: str | None = None, outcome: Outcome = Outcome.REFUSED
    ) -> None:
        super().__init__(what)
        self.what = what
        """What failed, where and why."""
        self.hint = hint
        self.outcome = outcome

    @property
    def message(self) -> str:
        """What failed, and that nothing was started where that is certain."""
        return (
            f"{self.what}; {NOTHING_STARTED}" if self.outcome is Outcome.NOT_STARTED else self.what
        )

    def __str__(self) -> str:
        return self.message

    def render(self) -> str:
        """The text a user reads: the message, then the hint on a line of its own."""
        return self.message + (f"\nhint: {self.hint}" if self.hint else "")


class UsageError(CloudtrainError):
    """A wrong command, flag or setting."""

    exit_code = 2


class SpecError(UsageError):
    """All that is wrong with a spec (or with a settings file) at once: `issues`, each at its line."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__("\n".join(issue.render() for issue in self.issues))


class SourceError(UsageError):
    """The source folder holds something that cannot be archived, or changed while it was packed."""


class RunNotFound(CloudtrainError):
    """No run has that id, or a prefix fits several."""

    exit_code = 2


class RefusedError(CloudtrainError):
    """A check refused the job before anything was started or spent: `issues`, where it found
    several things.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        hint: str | None = None,
        outcome: Outcome = Outcome.REFUSED,
        issues: Sequence[Issue] = (),
    ) -> None:
        super().__init__(what, hint=hint, outcome=outcome)
        self.issues = tuple(issues)


class RunExists(RefusedError):
    """The run id is taken; nothing was started a second time."""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint, outcome=Outcome.NOT_STARTED)


class StorageError(CloudtrainError):
    """The local disk could not be read or written: full, read-only, not ours."""

    exit_code = 4


DENIED = "Denied"
"""The code of a CloudError for a missing permission, where a cloud has several names for it."""

DENIED_CODES = frozenset(
    {DENIED, "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
)
"""It, and what AWS's services call it."""

NAME_TAKEN = "NameTaken"
"""The code of a CloudError where a job of that name exists with other properties."""


class CloudError(CloudtrainError):
    """The cloud or the network failed, or refused the call."""

    exit_code = 4

    def __init__(
        self,
        what: str,
        *,
        hint: str | None = None,
        code: str = "",
        transient: bool = False,
        outcome: Outcome = Outcome.REFUSED,
    ) -> None:
        super().__init__(what, hint=hint, outcome=outcome)
        self.code = code
        """The cloud's own name for it."""
        self.transient = transient
        """Whether asking again later may help."""

    @property
    def is_denied(self) -> bool:
        """Whether it is for want of a permission."""
        return self.code in DENIED_CODES


def unreadable(where: str, problem: str) -> CloudError:
    """Return the error of an answer that is not the service's: of a proxy, cut off, or empty."""
    return CloudError(
        f"{where}: the answer cannot be read: {problem}",
        hint=(
            "wait a little, then try again; a proxy or a login page of the network may have"
            " answered"
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
