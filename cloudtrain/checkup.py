"""A check of one thing that a job needs: the question, its answer, the verdict and the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cloudtrain.errors import (
    CloudError,
    CloudtrainError,
    Issue,
    Keys,
    RefusedError,
    UsageError,
    dotted,
    warning,
)

Verdict = Literal["found", "wrong", "not checked"]


class NotCheckedError(Exception):
    """No call that this caller may make tells the answer. The message is the reason."""


def expect(name: str, value: object, *good: object) -> None:
    """Raise RefusedError unless the answer about a thing is one of the good ones."""
    if value not in good:
        raise RefusedError(f"its {name} is {value}")


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
        """Return an error if the check is wrong, a warning if the thing was not checked, else None."""
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
    fix: str = ""
    """Next step if the thing is wrong, and the answer says none."""

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
        return self._answered(answer, "wrong", fix or self.fix)

    def not_checked(self, why: str, fix: str = "") -> Check:
        """Return a check whose result is unknown: no call tells it, or these credentials may not."""
        return self._answered(why, "not checked", fix)

    def failed(self, error: CloudtrainError) -> Check:
        """Return the check of a failed call: wrong, unless a permission is missing."""
        fix = error.hint or self.fix
        if not isinstance(error, CloudError):
            return self.wrong(error.what, fix)
        if error.is_denied:
            return self.not_checked(error.what, fix)
        if error.is_absent:
            return self.wrong(f"there is none: {error.what}", self.fix or fix or "look at its name")

        return self._answered(error.what, "wrong", fix, error.exit_code)

    def asked(self, ask: Callable[..., str | None], *things: Any) -> Check:
        """Return the check of a thing that `ask` looks for.

        It returns the answer, None for `it is`. It raises NotCheckedError, RefusedError for a thing
        that does not do, or a call's error.
        """
        try:
            return self.found(ask(*things) or "it is")
        except NotCheckedError as error:
            return self.not_checked(str(error))
        except (RefusedError, CloudError) as error:
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


class Thing(NamedTuple):
    """One thing that a request names."""

    kind: str
    """Key of a table of lookups, or of a list of rights."""
    name: str = ""
    """Name in the request."""
    setting: Keys = ()
    label: str = ""
    """Name of its check; empty for the kind."""
    source: Mapping[str, Any] = {}
    """Member of the request that names it."""
    arn: str = ""


class Lookup(NamedTuple):
    """How things of a kind are looked up: the question of the check, and who asks it."""

    ask: Callable[[Any, Thing], str | None]
    """Gets the walk and the thing. Answers as `Question.asked` says."""
    question: str
    """Question, with `{name}`."""
    fix: str = ""
    """Next step, with `{name}` and `{setting}`."""

    def check(self, walk: Any, thing: Thing) -> Check:
        """Return the check of a thing."""
        words = {"name": thing.name, "setting": dotted(thing.setting)}
        return Question(
            thing.label or thing.kind,
            self.question.format(**words),
            thing.setting,
            self.fix.format(**words),
        ).asked(self.ask, walk, thing)
