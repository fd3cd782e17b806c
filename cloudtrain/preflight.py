"""What is looked at before anything is started or spent."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.errors import Mistake, RefusedError, SpecError
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding, get_provider


def preflight(plan: Plan) -> list[Finding]:
    """All findings on a plan, errors first: of the provider whose request it is, and of the one that runs it."""
    target = get_provider(plan.target.provider)
    findings = [*target.rules(plan), *target.checks(plan)]
    if plan.is_rehearsal:
        findings += get_provider(plan.provider).checks(plan)
    return sorted(findings, key=lambda finding: finding.severity != "error")


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise with every error among the findings: SpecError if the spec is to blame, else RefusedError."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return
    if any(finding.path for finding in errors):
        raise SpecError([Mistake(where=f.where, path=f.path, message=f.message, hint=f.hint) for f in errors])
    raise RefusedError("\n".join(f.text() + (f"\n  hint: {f.hint}" if f.hint else "") for f in errors))
