"""What is looked at before anything is started or spent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from cloudtrain.bundle import bundled
from cloudtrain.errors import Mistake, RefusedError, SpecError
from cloudtrain.planning import Plan
from cloudtrain.providers import Finding, get_provider

PYTHON = "python"
"""The fact, and its origin, that names the Python of jobs on this machine."""


def offline_findings(plan: Plan) -> list[Finding]:
    """What rules, tables and the disk say of a plan, errors first: all that `plan` can show. No network, no process.

    Of the provider whose request it is, of the one that runs it, and of the shared trainer.
    """
    findings = [*get_provider(plan.target.provider).rules(plan), *trainer_findings(plan)]
    if plan.is_rehearsal:
        findings += get_provider(plan.provider).rules(plan)
    return sorted(findings, key=_errors_first)


def preflight(plan: Plan, *, starting: bool = True) -> list[Finding]:
    """All findings on a plan, errors first: the offline ones, and those that take a process, an engine or an SDK.

    `starting`: whether the job is started if nothing stands in the way. If not, no program is executed that a file
    beside the job names: who only looks at a repository of somebody else must be able to without running it.
    """
    findings = offline_findings(plan)
    for provider in dict.fromkeys((plan.target.provider, plan.provider)):
        named_by = plan.host.origins.get(PYTHON) if provider == plan.provider else None
        if named_by and not starting:
            findings.append(_not_executed(plan.host.facts[PYTHON], named_by))
        else:
            findings += get_provider(provider).checks(plan)
    return sorted(findings, key=_errors_first)


def _not_executed(python: str, named_by: str) -> Finding:
    message = f"{python} is named by {named_by}, so nothing is asked of it before a submit"
    return Finding(severity="warning", message=message, hint="CLOUDTRAIN_PYTHON names one that is asked at once")


def _errors_first(finding: Finding) -> bool:
    return finding.severity != "error"


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise with every error among the findings: SpecError if the spec is to blame, else RefusedError."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return
    if any(finding.path for finding in errors):
        raise SpecError([Mistake(where=f.where, path=f.path, message=f.message, hint=f.hint) for f in errors])
    raise RefusedError("\n".join(f.text() + (f"\n  hint: {f.hint}" if f.hint else "") for f in errors))


def trainer_findings(plan: Plan) -> list[Finding]:
    """What the shared trainer says of its arguments and of so many ranks: each would say so in the job, and be paid."""
    if plan.spec.entrypoint is not None:
        return []
    ranks = {
        "WORLD_SIZE": str(plan.spec.resources.nodes * plan.processes),
        "LOCAL_WORLD_SIZE": str(plan.processes),
        "RANK": "1",  # which prints nothing
    }
    with _trainers_modules(ranks):
        arguments = import_module("cloudtrain_trainer.arguments")
        try:
            arguments.parse(list(plan.spec.args.argv))
        except arguments.Refused as reason:
            message = f"the shared trainer says: {reason}"
            return [Finding(severity="error", message=message, path="args", where=plan.where("args"))]
        except SystemExit:  # --help
            pass
    return []


_TRAINERS = ("cloudtrain_trainer", "cloudtrain_job")
_loaded: dict[str, ModuleType] = {}
"""The trainer's modules between two questions: importing them once is enough."""


@contextmanager
def _trainers_modules(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, the trainer's own modules, which need no torch for this, can be imported, and see these variables.

    Outside nothing is left of either: a program around us may have modules of the same names.
    """
    folder, path, around = str(bundled("entrypoints")), list(sys.path), _taken_out()
    before = {name: os.environ.get(name) for name in variables}
    sys.modules.update(_loaded)
    sys.path[:0] = [folder, f"{folder}/job"]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        sys.path[:] = path
        _loaded.update(_taken_out())
        sys.modules.update(around)


def _taken_out() -> dict[str, ModuleType]:
    """The modules of the trainer's names, which are none any more."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in _TRAINERS}
