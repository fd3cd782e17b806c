"""A plan for people: what runs where, from which source, within which limits; and how two requests differ."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain import api
from cloudtrain.cli.output import count
from cloudtrain.errors import UsageError
from cloudtrain.planning import Plan
from cloudtrain.quantities import format_duration, format_size
from cloudtrain.run import find_run
from cloudtrain.submission import is_packed, warnings


def headline(plan: Plan) -> str:
    """`2 nodes x 2 processes on this machine`."""
    resources = plan.spec.resources
    gpus = f", {count(resources.gpus, 'GPU')} each" if resources.gpus else ""
    processes = count(resources.processes_per_node, "process")
    return f"{count(resources.nodes, 'node')} x {processes}{gpus} on {plan.target.where}"


def overview(plan: Plan) -> str:
    """The plan in a few lines."""
    spec, source = plan.spec, plan.facts.source
    world = spec.resources.nodes * spec.resources.processes_per_node
    what = spec.entrypoint or "the shared trainer"
    packed = " (unchanged, packed already)" if is_packed(plan) else ""
    rows = [
        (
            "runs",
            f"{what} {shlex.join(spec.args.argv)}".rstrip() + f"      {world} process{'es' if world > 1 else ''}",
        ),
        ("source", f"{source.files} files, {format_size(source.bytes)}, sha256:{source.digest[:8]}…{packed}"),
        *((f"input {name}", item.on(plan.provider) or "") for name, item in spec.inputs.items()),
        (
            "stores",
            f"a checkpoint every {format_duration(spec.checkpoints.every)}, {spec.checkpoints.keep} kept",
        ),
        ("limits", _limits(plan)),
        ("cost", "nothing: it runs here") if plan.provider == "local" else ("cost", "unknown"),
        ("request", f"{len(api.render(plan).document)} fields: --json prints it, --diff last compares it"),
    ]
    lines = [f"{spec.name}  {headline(plan)}"]
    lines += [f"  {name:<8} {text}" for name, text in rows]
    lines += [f"  {'set by':<8} {path}  ← {origin}" for path, origin in _set_elsewhere(plan)]
    lines += [f"  note: {note}" for note in warnings(plan, [])]
    return "\n".join(lines)


def _limits(plan: Plan) -> str:
    limits = plan.spec.limits
    runtime = f"stops after {format_duration(limits.max_runtime)}" if limits.max_runtime else "no time limit"
    origin = plan.origins.get("limits.max_runtime")
    restarts = f"{count(limits.restarts, 'restart')} in place"
    return f"{runtime}{f'  ← {origin} max_runtime' if origin else ''}; {restarts}"


def _set_elsewhere(plan: Plan) -> list[tuple[str, str]]:
    """Fields that come from a flag: what the file alone does not tell."""
    return [(path, origin) for path, origin in plan.origins.items() if origin.startswith("--set")]


def difference(document: Mapping[str, Any], run_id: str, against: str, data_dir: str | None) -> list[str]:
    """A unified diff of two requests, no line when they are the same; the run ids, always different, are left out."""
    from difflib import unified_diff

    if os.path.isfile(against):  # noqa: PTH113  (false, not an error, for what no disk can hold)
        try:
            other = json.loads(Path(against).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{against}: is not JSON: {error}", hint="cloudtrain plan --json > FILE writes one"
            ) from None
        other_id = str(other.get("run_id", "")) if isinstance(other, dict) else ""
    else:
        run = find_run(against, data_dir=data_dir)
        other, other_id = run.folder.document("request.json"), run.id
    old, new = _lines(other, other_id), _lines(dict(document), run_id)
    return list(unified_diff(old, new, against, "plan", lineterm=""))


def _lines(document: Any, run_id: str) -> list[str]:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return (text.replace(run_id, "{run}") if run_id else text).splitlines()
