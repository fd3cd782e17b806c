"""Hint of a failure report: the remedy of the matching rule."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES
from cloudtrain_launcher.events import Cause


def hint_for(cause: Cause) -> str | None:
    """Return a remedy for a root cause, or None. The reporter may have given one."""
    return cause.hint or hint_for_message(f"{cause.exception}: {cause.message}")


def hint_for_message(message: str) -> str | None:
    """Return a remedy for a failure message; None if only a consequence is known."""
    rule = rule_of(message)
    return rule.remedy_for(message) if rule and not rule.is_consequence else None


def rule_of(message: str) -> Rule | None:
    """Return the most specific rule that matches a message, or None."""
    matching = [rule for rule in RULES if rule.matches(message)]
    return min(
        matching,
        key=lambda rule: (rule.is_consequence, rule.is_general, rule.is_catch_all),
        default=None,
    )
