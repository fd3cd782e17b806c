"""A check of one thing that a job needs: the question, its answer, the verdict and the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cloudtrain.errors import CloudError, CloudtrainError, Issue, Keys, UsageError, warning

Verdict = Literal["found", "wrong", "not checked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Answer to a question about a machine or an account. Checks change and cost nothing."""

    name: str
    """Thing in a few words: `execution role`, `bucket policies`."""
    question: str
    """Question in plain words: `may SageMaker assume it`."""
    answer: str
    """Answer to it; of a thing that was not checked, the reason."""
    verdict: Verdict
    fix: str = ""
    """Next step: a command, a setting or a link. Empty unless something is wrong."""
    setting: Keys = ()
    """Field of the spec, such as `("aws", "role")`; empty for none."""
    exit_code: int = UsageError.exit_code
    """Exit code of the command if this check is wrong: 2 for the user, 4 for a cloud error."""

    @property
    def is_wrong(self) -> bool:
        """True if a job would fail because of this."""
        return self.verdict == "wrong"

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON. The exit code belongs to the command."""
        document = {
            "name": self.name,
            "asked": self.question,
            "answer": self.answer,
            "verdict": self.verdict,
        }
        if self.fix:
            document["fix"] = self.fix
        return document

    def issue(self) -> Issue | None:
        """Return an error if the check is wrong, a warning if nothing was checked, else None."""
        if self.is_wrong:
            return Issue(self.setting, f"{self.name}: {self.answer}", self.fix or None)
        if self.verdict == "not checked":
            return warning(f"{self.name}: not checked: {self.answer}", self.fix or None)
        return None


@dataclass(frozen=True, slots=True)
class Question:
    """A check without an answer."""

    name: str
    question: str
    setting: Keys = ()

    @classmethod
    def of_setting(cls, issue: Issue) -> Check:
        """Return a wrong check for a mistake in a field, a setting or the job as a whole."""
        name = ".".join(map(str, issue.path)) or "job"
        answer = ": ".join(part for part in (issue.origin, issue.message) if part)
        return cls(name, "is it valid", issue.path).wrong(answer, issue.hint or "")

    def found(self, answer: str) -> Check:
        """Return the check of a thing that is as the job needs it."""
        return self._answered(answer, "found")

    def wrong(self, answer: str, fix: str = "") -> Check:
        """Return a check that would fail a job."""
        return self._answered(answer, "wrong", fix)

    def not_checked(self, why: str, fix: str = "") -> Check:
        """Return a check whose result is unknown: no call tells it, or these credentials may not."""
        return self._answered(why, "not checked", fix)

    def failed(self, error: CloudtrainError) -> Check:
        """Return the check of a failed call: wrong, unless a permission is missing."""
        if isinstance(error, CloudError) and error.is_denied:
            return self.not_checked(error.what, error.hint or "")
        return self._answered(error.what, "wrong", error.hint or "", error.exit_code)

    def answered_by(self, ask: Callable[[], Check]) -> Check:
        """Return the check from `ask`, or from the CloudError that it raises."""
        try:
            return ask()
        except CloudError as error:
            return self.failed(error)

    def _answered(
        self, answer: str, verdict: Verdict, fix: str = "", exit_code: int = UsageError.exit_code
    ) -> Check:
        return Check(
            name=self.name,
            question=self.question,
            answer=" ".join(answer.split()),
            verdict=verdict,
            fix=fix,
            setting=self.setting,
            exit_code=exit_code,
        )
