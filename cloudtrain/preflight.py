"""What is looked at before anything is started or spent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from cloudtrain.bundle import bundled
from cloudtrain.errors import Mistake, RefusedError, SpecError
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding, get_provider

_ASK = """
import sys
folder = sys.argv.pop(1)
sys.path[:0] = [folder, folder + "/job"]
from cloudtrain_trainer.arguments import Refused, parse
try:
    parse(sys.argv[1:])
except Refused as reason:
    sys.exit(str(reason))
"""


def preflight(plan: Plan) -> list[Finding]:
    """All findings on a plan, errors first: of the provider whose request it is, and of the one that runs it."""
    target = get_provider(plan.target.provider)
    findings = [*target.rules(plan), *target.checks(plan), *trainer_findings(plan)]
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


def trainer_findings(plan: Plan) -> list[Finding]:
    """What the shared trainer says of its arguments and of so many ranks: each would say so in the job, and be paid.

    It is asked in a process of its own, which needs no torch.
    """
    if plan.spec.entrypoint is not None:
        return []
    resources = plan.spec.resources
    ranks = {
        "WORLD_SIZE": str(resources.nodes * resources.processes_per_node),
        "LOCAL_WORLD_SIZE": str(resources.processes_per_node),
    }
    question = [sys.executable, "-c", _ASK, str(bundled("entrypoints")), *plan.spec.args.argv]
    answer = subprocess.run(
        question, env={**os.environ, **ranks}, timeout=60, check=False, capture_output=True, text=True, errors="replace"
    )
    if answer.returncode == 0:
        return []
    message = f"the shared trainer says: {answer.stderr.strip()}"
    return [Finding(severity="error", message=message, path="args", where=plan.where("args"))]
