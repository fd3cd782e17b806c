"""The page of the rules by which failures are diagnosed."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import FIELDS, RULES
from reference_page import literal, page, table

_DEPENDS = "depends on what was said: "


def failures() -> str:
    """Every rule, by its field: how it is called, what it means, what to do, what a restart does."""
    text = (
        f"The {len(RULES)} rules by which `cloudtrain diagnose` and the hint of a failure report"
        " name a root cause. Where several match, one that says what happened counts before a"
        " general one, that before a consequence, and the earlier line before the later one. A"
        " *general* rule says little by itself, one of a *kind* less; a *consequence* is never the"
        " cause while another rule matches. How it is used is in [Why did it"
        " fail?](../guides/diagnose.md)\n"
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
