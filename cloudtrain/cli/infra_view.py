"""How a plan of infrastructure, its progress and a deployment look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cloudtrain.cli.output import count, table
from cloudtrain.cli.terminal import one_line

if TYPE_CHECKING:
    from cloudtrain.infrastructure.changes import (
        Change,
        ChangePlan,
        Deployment,
        IdleCost,
        ResourceEvent,
    )
    from cloudtrain.infrastructure.parameters import Parameter

_STATES = {
    "absent": "does not exist",
    "ready": "is ready",
    "changing": "is being changed",
    "failed": "has failed",
}

NEXT = {
    "absent": "makes one",
    "changing": "watches it",
    "failed": "goes on where it failed, or says what to do first",
}
"""What `infra up` does with a deployment that is not ready."""


def plan_lines(plan: ChangePlan) -> list[str]:
    """What would be done, what it costs while no job runs, and what else one should know."""
    lines = [f"{plan.provider}: deployment {one_line(plan.name)} in {one_line(plan.where)}"]
    if plan.changes:
        rows = [
            (
                each.action,
                each.kind,
                each.identity or each.resource,
                _cost(each.idle_cost),
                _detail(each),
            )
            for each in plan.changes
        ]
        lines += _indented(table(rows, ("", "what", "name", "USD a month idle", "")))
    if plan.is_empty:
        lines.append("  nothing to do")
    if plan.parameters:  # what would be up, not what goes
        lines.append(f"  while no job runs: {_total(plan)}")
    lines += [f"    {kind}: {one_line(note)}" for kind, note in _prices(plan).items()]
    return [*lines, *(f"  note: {one_line(note)}" for note in plan.notes)]


def parameter_lines(parameters: Iterable[Parameter]) -> list[str]:
    """Each with its default, what it means, the values there are, and what it costs."""
    lines = []
    for each in parameters:
        lines.append(f"{each.name}={each.default}")
        lines.append(f"    {each.meaning}")
        if each.choices:
            lines.append(f"    one of: {', '.join(each.choices)}")
        elif each.example and each.example != each.default:
            lines.append(f"    such as: {each.name}={each.example}")
        lines += [
            f"    {value}: {usd:.2f} USD a month idle"
            for value, usd in each.idle_usd_per_month.items()
        ]
    return lines


def event_line(event: ResourceEvent) -> str:
    """`  created   S3 bucket (Bucket)  cloudtrain-bucket-1x2y3z`."""
    said = [f"  {event.state:<9} {event.kind} ({event.resource})", event.identity, event.reason]
    return "  ".join(one_line(part) if at else part for at, part in enumerate(said) if part)


def deployment_lines(deployment: Deployment, known: Iterable[Parameter]) -> list[str]:
    """Its state, its resources, what was chosen, what it is good for, and the lines of
    cloudtrain.toml.
    """
    from cloudtrain.infrastructure.settings_file import as_toml

    where = (
        f"{deployment.provider}: deployment {one_line(deployment.name)} in"
        f" {one_line(deployment.where)}"
    )
    reason = f": {one_line(deployment.reason)}" if deployment.reason else ""
    lines = [f"{where} {_STATES[deployment.state]}{reason}"]
    if deployment.resources and deployment.state == "absent":
        lines.append("  left by an earlier one:")
    if deployment.resources:
        rows = [(each.kind, each.name, each.identity, each.state) for each in deployment.resources]
        lines += _indented(table(rows, ("what", "in the template", "name", "state")))
    defaults = {each.name: each.default for each in known}
    chosen = {
        name: value for name, value in deployment.parameters.items() if value != defaults.get(name)
    }
    if chosen:
        lines.append(
            "  chosen: " + " ".join(f"{name}={one_line(value)}" for name, value in chosen.items())
        )
    lines += [f"  {name}: {one_line(value)}" for name, value in deployment.outputs.items()]
    if deployment.settings:
        lines += ["", *as_toml(deployment.settings).splitlines()]
    return lines


def _indented(text: str) -> Iterable[str]:
    return (f"  {line}" for line in text.splitlines())


def _detail(change: Change) -> str:
    """What there is to say of a change; that it deletes data is said in any case."""
    return change.detail or "with all that is stored in it" * (
        change.holds_data and change.action == "delete"
    )


def _cost(cost: IdleCost | None) -> str:
    if cost is None:
        return "0"
    return "what is stored" if cost.usd_per_month is None else f"{cost.usd_per_month:.2f}"


def _prices(plan: ChangePlan) -> dict[str, str]:
    """What the prices of what there will be are made of, by kind of resource."""
    return {
        each.kind: each.idle_cost.note
        for each in plan.changes
        if each.idle_cost and each.action != "delete"
    }


def _total(plan: ChangePlan) -> str:
    """`8.30 USD a month, and what is stored`."""
    paid = [each for each in plan.changes if each.idle_cost and each.action != "delete"]
    stored = count(
        sum(each.idle_cost is not None and each.idle_cost.usd_per_month is None for each in paid),
        "resource",
    )
    amount = (
        f"{plan.idle_usd_per_month:.2f} USD a month" if plan.idle_usd_per_month else "0 USD a month"
    )
    return amount if stored.startswith("0 ") else f"{amount}, and what is stored in {stored}"
