"""The page of the rules that diagnose failures."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import FIELDS, RULES
from reference_page import literal, page, table

_DEPENDS = "depends on the message: "


def failures() -> str:
    """Return the page of rules by field, with cause, remedy and effect of a restart."""
    text = (
        f"`cloudtrain diagnose` and the hint of a failure report use these {len(RULES)} rules. If"
        " several match, a specific rule precedes a *general* one, then one of a *kind*, then a"
        " *consequence*, and an earlier line a later one. A consequence is never the cause if"
        " another rule matches. See [Why did it fail?](../guides/diagnose.md)\n"
    )
    for field, rules in FIELDS.items():
        rows = (_row(rule) for rule in rules)
        text += f"\n## {field}\n\n" + table(
            ("rule", "cause", "what to do", "restart", "source"), rows
        )
    return page("Failures that are known", text)


def _row(rule: Rule) -> tuple[str, str, str, str, str]:
    kind = " (consequence)" if rule.is_consequence else " (general)" if rule.is_general else ""
    kind = " (kind)" if rule.is_catch_all else kind
    remedy = rule.remedy if isinstance(rule.remedy, str) else _DEPENDS + rule.remedy_for("")
    source = (
        f"[source]({rule.source})"
        if "://" in rule.source
        else f"[page](../{rule.source.removeprefix('docs/')})"
    )
    return f"`{rule.name}`{kind}", rule.cause, literal(remedy), rule.restart, source
