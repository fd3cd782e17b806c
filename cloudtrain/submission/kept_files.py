"""Warnings about `keep` patterns that match the source, which need not come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain_launcher.keep_patterns import KeepPattern


def kept_of_source(patterns: Sequence[str], paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the patterns that match files of the source, each with its first match.

    `paths`: relative to the source.
    """
    if not patterns:
        return ()
    names = sorted(paths)
    matches = []
    for text in patterns:
        pattern = KeepPattern(text)
        if first := next((name for name in names if pattern.covers(name)), None):
            matches.append((text, first))
    return tuple(matches)


def keep_issues(plan: Plan) -> list[Issue]:
    """Return warnings about `keep` patterns that match files of the source."""
    return [
        plan.located(
            warning(
                f"{pattern!r} matches {path} of the source, which every run would keep again with"
                " its output",
                f"a pattern that means new files only, or {path} in .cloudtrainignore if the job"
                " does not need it",
                path=(
                    ("keep", plan.spec.keep.index(pattern))
                    if pattern in plan.spec.keep
                    else ("keep",)
                ),
            )
        )
        for pattern, path in plan.context.source.kept
    ]
