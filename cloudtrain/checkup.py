"""One check of a machine or an account: what was asked, the answer, whether it is right, and what
to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cloudtrain.errors import CloudError, CloudtrainError, UsageError
from cloudtrain.issues import Issue, Keys, warning

Verdict = Literal["ok", "wrong", "not allowed to look", "not applicable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A question about a machine or an account, with its answer. Asking it has changed nothing and
    cost nothing.
    """

    name: str
    """What it is about, in a word or two: `execution role`."""
    asked: str
    """The question as a person would put it: `may SageMaker assume it`."""
    answer: str
    verdict: Verdict
    fix: str = ""
    """What to do next: a command, a setting, a link. Empty where nothing is wrong."""
    setting: Keys = ()
    """The field of a spec that it is about, `("aws", "role")`; empty for none."""
    exit_code: int = UsageError.exit_code
    """Of a command whose check is wrong: 2 for what somebody has to set right, 4 where a cloud does
    not answer.
    """

    @property
    def is_wrong(self) -> bool:
        """Whether a job would fail for it."""
        return self.verdict == "wrong"

    def to_json(self) -> dict[str, Any]:
        """For scripts: without the exit code, which the command has."""
        shown = {
            "name": self.name,
            "asked": self.asked,
            "answer": self.answer,
            "verdict": self.verdict,
        }
        return shown | ({"fix": self.fix} if self.fix else {})

    def issue(self) -> Issue | None:
        """As a problem of a plan: an error if it is wrong, a warning if nobody could look, None
        otherwise.
        """
        if self.is_wrong:
            return Issue(self.setting, f"{self.name}: {self.answer}", self.fix or None)
        if self.verdict == "not allowed to look":
            return warning(f"{self.name}: not allowed to look: {self.answer}", self.fix or None)
        return None


@dataclass(frozen=True, slots=True)
class Question:
    """A check without its answer yet."""

    name: str
    asked: str
    setting: Keys = ()

    @classmethod
    def about(cls, issue: Issue) -> Check:
        """The check of a setting that is missing, or of another form than it must have."""
        asked = cls(
            ".".join(map(str, issue.path)) or "settings", "is it set as it must be", issue.path
        )
        return asked.wrong(
            ": ".join(part for part in (issue.origin, issue.message) if part), issue.hint or ""
        )

    def ok(self, answer: str) -> Check:
        """It is as it should be."""
        return self._answered(answer, "ok")

    def wrong(self, answer: str, fix: str = "") -> Check:
        """A job would fail for it."""
        return self._answered(answer, "wrong", fix)

    def not_applicable(self, why: str) -> Check:
        """Nothing depends on it here, or it cannot be known from here."""
        return self._answered(why, "not applicable")

    def not_allowed(self, answer: str, fix: str = "") -> Check:
        """These credentials may not look, which says nothing about what they would have seen."""
        return self._answered(answer, "not allowed to look", fix)

    def failed(self, error: CloudtrainError) -> Check:
        """The call for it failed: wrong, unless it is for want of a permission."""
        if isinstance(error, CloudError) and error.is_denied:
            return self.not_allowed(error.what, error.hint or "")
        return self._answered(error.what, "wrong", error.hint or "", error.exit_code)

    def answered_by(self, ask: Callable[[], Check]) -> Check:
        """The check that a function gives, or that its CloudError gives."""
        try:
            return ask()
        except CloudError as error:
            return self.failed(error)

    def _answered(
        self, answer: str, verdict: Verdict, fix: str = "", exit_code: int = UsageError.exit_code
    ) -> Check:
        return Check(
            name=self.name,
            asked=self.asked,
            answer=" ".join(answer.split()),
            verdict=verdict,
            fix=fix,
            setting=self.setting,
            exit_code=exit_code,
        )
