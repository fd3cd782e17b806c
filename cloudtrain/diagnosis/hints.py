"""The hint of a failure report: the remedy of the rule that knows the failure."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES
from cloudtrain.runs.events import Cause


def hint_for(cause: Cause) -> str | None:
    """What to do about a root cause, None when nothing is known. Whoever reported it may have said
    it already.
    """
    return cause.hint or hint_for_message(f"{cause.exception}: {cause.message}")


def hint_for_message(message: str) -> str | None:
    """What to do about a failure of which only a message is known; None when nothing is known but a
    consequence.
    """
    rule = rule_of(message)
    return rule.remedy_for(message) if rule and not rule.is_consequence else None


def rule_of(message: str) -> Rule | None:
    """The rule that knows a message, None where none does. Of several the one that says most, then
    the first.
    """
    matching = [rule for rule in RULES if rule.matches(message)]
    return min(
        matching,
        key=lambda rule: (rule.is_consequence, rule.is_general, rule.is_catch_all),
        default=None,
    )
