"""HTML table of a plan for notebooks, without external resources."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from cloudtrain.units import format_duration
from cloudtrain_wire.sizes import format_size

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan


def plan_table(plan: Plan) -> str:
    """Return the main decisions of a plan and its issues, with escaped texts."""
    rows = (
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in _rows(plan)
    )
    return f"<table><caption>{escape(plan.run_id)}</caption>{''.join(rows)}</table>"


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    nodes = plan.spec.resources.nodes
    where = plan.target.where
    if plan.is_rehearsal:
        where = f"{plan.host.where}, as {plan.target.declaration.label} would run it"

    yield "job", plan.spec.name
    yield "where", where
    if plan.target.instances:
        yield "machines", f"{nodes} x {' or '.join(plan.target.instances)}"

    yield "processes", f"{nodes} x {plan.processes}"
    if plan.gpus:
        yield "GPUs", f"{nodes} x {plan.gpus}"

    source = plan.context.source
    yield "source", f"{source.files} files, {format_size(source.bytes)}"
    for name, item in plan.spec.inputs.items():
        yield f"input {name}", plan.target.location_for(item.uri) or ""

    yield "cost", _cost(plan)
    for issue in plan.issues:
        yield "error" if issue.is_error else "warning", issue.message


def _cost(plan: Plan) -> str:
    estimate = plan.target.cost_estimate
    if estimate is None or plan.is_rehearsal:
        return "nothing: it runs here"
    if estimate.worst_usd is None:
        return "unknown"

    stop = format_duration(estimate.max_seconds)
    return f"at most {estimate.worst_usd:.2f} USD of machine time: stops after {stop}"
