"""The page of the rules that diagnose failures."""

from __future__ import annotations

from cloudtrain.diagnosis.rules import FIELDS, RULES
from reference_page import page, table


def failures() -> str:
    """Return the page of rules by field, with their causes."""
    text = (
        f"These {len(RULES)} rules explain a failure. `cloudtrain diagnose` chooses the failure"
        " first, and prints the remedy, whether a restart helps, and a source with the rule. A"
        " *symptom* shows how a process ended: a line of the kernel, an engine or a scheduler says"
        " more. A *consequence* is the cause only if nothing else is known. See [Why did it"
        " fail?](../guides/diagnose.md)\n"
    )
    for field, rules in FIELDS.items():
        rows = []
        for rule in rules:
            kind = " (consequence)" if rule.is_consequence else " (symptom)" * rule.is_symptom
            rows.append((f"`{rule.name}`{kind}", rule.cause))
        text += f"\n## {field}\n\n" + table(("rule", "cause"), rows)
    return page("Failures that are known", text)
