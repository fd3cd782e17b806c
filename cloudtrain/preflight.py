"""What is looked at before anything is started or spent."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.errors import RefusedError
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding, get_provider


def preflight(plan: Plan) -> list[Finding]:
    """All findings on a plan, errors first."""
    findings = get_provider(plan.provider).checks(plan)
    return sorted(findings, key=lambda finding: finding.severity != "error")


def refuse_errors(findings: Sequence[Finding]) -> None:
    """RefusedError with every error among the findings, if there is one."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        text = "\n".join(f.message + (f"\n  hint: {f.hint}" if f.hint else "") for f in errors)
        raise RefusedError(text)
