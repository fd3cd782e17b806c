"""Views of a plan: machines, source, cost and limits; and the difference of two requests."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from typing import Any

from cloudtrain.api.context import is_packed
from cloudtrain.api.preflight import start_notes
from cloudtrain.api.rehearsals import without_varying
from cloudtrain.catalog import names_of
from cloudtrain.catalog.machines import find_instance
from cloudtrain.catalog.pricing import OWN_TABLE
from cloudtrain.cli.machine_view import NETWORKS, elsewhere, machine_lines
from cloudtrain.cli.output import count
from cloudtrain.cli.terminal import indented, one_line
from cloudtrain.errors import Issue, UsageError, dotted
from cloudtrain.planning.cost import NOT_CHECKED, CostEstimate
from cloudtrain.planning.launch import command_words, dependencies_document, unfolded
from cloudtrain.planning.plan import UNREAD, LocalInput, Plan
from cloudtrain.planning.request_overrides import spec_overrides
from cloudtrain.providers.shared.paths import file_name
from cloudtrain.providers.shared.uploads import past_upload
from cloudtrain.settings import data_folder
from cloudtrain.spec.inputs import Input
from cloudtrain.units import format_duration
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.requirement_files import hide_passwords
from cloudtrain_wire.secret_values import masker, secrets_in
from cloudtrain_wire.sizes import format_size

MAX_PACKAGES = 6
"""Maximum installed packages that a plan shows."""
MAX_CHANGES = 3
"""Maximum changes since a rehearsal that a plan shows."""


def headline(plan: Plan) -> str:
    """Return `2 nodes x 2 processes on this machine`, for example.

    For a cloud: `2 x ml.p4d.24xlarge (8 x A100-40GB, EFA), spot, us-east-1`.
    """
    resources = plan.spec.resources
    if plan.target.is_rented and not plan.is_rehearsal:
        spot = ", spot" if resources.spot else ""
        return f"{resources.nodes} x {_machines(plan)}{spot}, {plan.target.where}"

    gpus = ""
    if plan.gpus:
        gpus = f", {count(plan.gpus, 'GPU')}"
    if plan.gpus and resources.nodes > 1:
        gpus += " per node"

    processes = count(plan.processes, "process")
    return f"{count(resources.nodes, 'node')} x {processes}{gpus} {place(plan)}"


def place(plan: Plan) -> str:
    """Return `on this machine`, `on this machine, as SageMaker would run it`, or `in us-east-1`."""
    if plan.is_rehearsal:
        return f"on {plan.host.where}, as {plan.target.declaration.label} would run it"
    if not plan.target.is_rented:
        return f"on {plan.target.where}"

    return f"in {plan.target.where}"


def _machines(plan: Plan) -> str:
    """Return the instance types by preference, with their GPUs and network."""
    described = []
    for name in plan.target.instances:
        row = find_instance(plan.target.provider, name)
        parts = []
        if row and row.gpus:
            parts.append(f"{row.gpus} x {names_of(row)[-1]}")
        if row and row.network in NETWORKS:
            parts.append(NETWORKS[row.network])

        if parts:
            described.append(f"{name} ({', '.join(parts)})")
        else:
            described.append(name)

    return " or ".join(described) or f"machine of {plan.target.cluster}"


def overview(plan: Plan, issues: Sequence[Issue] = ()) -> str:
    """Return the plan as text: command, account, image, source, inputs, limits, cost, notes."""
    lines = [f"{plan.spec.name}  {one_line(headline(plan))}"]
    for name, texts in _sections(plan).items():
        label = name
        for text in filter(None, texts):
            lines.append(f"  {label:<8} {one_line(text)}")
            label = ""

    lines += [f"  note: {indented(note, 8)}" for note in start_notes(plan, issues)]
    if errors := sum(issue.is_error for issue in issues):
        lines.append(f"  refused  submit would refuse it: {count(errors, 'error')}")

    return "\n".join(lines)


def _sections(plan: Plan) -> dict[str, Sequence[str]]:
    """Return the texts of a plan by their label; empty texts are not shown."""
    spec = plan.spec
    source = plan.context.source
    program = shlex.join(command_words(spec)) or spec.entrypoint or "the shared trainer"
    command = f"{program} {shlex.join(spec.args.argv)}".rstrip()
    packed = " (unchanged, packed already)" if is_packed(plan) else ""
    kept = ""
    if spec.keep:
        kept = f"{', '.join(spec.keep)} of the working folder, with the output"

    image = "" if plan.is_rehearsal else plan.target.image_address

    return {
        "runs": [f"{command}      {count(spec.resources.nodes * plan.processes, 'process')}"],
        "account": _borrowed(plan),
        "image": [image],
        "source": [
            f"{count(source.files, 'file')}, {format_size(source.bytes)},"
            f" sha256:{source.digest[:8]}…{packed}"
        ],
        "installs": [_packages(plan)],
        "setup": spec.setup,
        **{f"input {name}": [_input(plan, name, item)] for name, item in spec.inputs.items()},
        "stores": [
            f"a checkpoint every {format_duration(spec.checkpoints.every)},"
            f" {spec.checkpoints.keep} kept"
        ],
        "keeps": [kept],
        "limits": [_limits(plan)],
        "cost": cost(plan),
        "machine": machine_lines(plan),
        "sweep": _sweep(plan),
        "yours": [_overrides(plan)],
        "rehearsed": [rehearsed(plan)],
        "request": [f"{_kind(plan)}{len(plan.request.document)} fields{_request_hint(plan)}"],
        "set by": [f"{path}  ← {origin}" for path, origin in _set_elsewhere(plan)],
    }


def _input(plan: Plan, name: str, item: Input) -> str:
    """Return the location of an input, and whether it is a file or a folder; mark a guess."""
    location = plan.target.location_for(item.uri) or ""
    if plan.target.contract == "plain":
        return location
    if name in plan.context.uploads:
        return f"{location}  {upload_text(plan, plan.context.uploads[name])}"
    if item.type is not None:
        return f"{location}  ({item.type})"

    guess = "one file, by its suffix" if file_name(location) else "a folder, without a suffix"
    return f"{location}  ({guess}; set type: if not)"


def upload_text(plan: Plan, item: LocalInput) -> str:
    """Return the size of an input of this machine, its upload, and what its copy costs."""
    size = f"{count(item.files, 'file')}, {format_size(item.bytes)}"
    terms = plan.target.declaration.uploads
    if plan.is_rehearsal or terms is None:
        return f"{size}, read in place"

    cost = f"stored for {item.bytes / 1e9 * terms.usd:.2f} USD a month ({terms.price})"
    past = past_upload(plan, item)
    if past and past.digest == item.digest:
        day = time.strftime("%Y-%m-%d", time.localtime(past.time))
        return f"{size}, uploaded by {past.run} on {day}; {cost}"
    if item.digest == UNREAD:
        return f"{size}, not read yet: submit reads it, and uploads what is not there; {cost}"

    return f"{size}, will be uploaded; {cost}"


def rehearsed(plan: Plan) -> str:
    """Return the successful rehearsal of this job, and later changes; may be empty."""
    rehearsal = plan.context.rehearsal
    if rehearsal is None:
        return ""

    when = f"on {time.strftime('%Y-%m-%d', time.localtime(rehearsal.time))} by {rehearsal.run}"
    if not rehearsal.changes:
        return f"{when}: the same request"

    changes = "; ".join(rehearsal.changes[:MAX_CHANGES])
    more = len(rehearsal.changes) - MAX_CHANGES
    if more > 0:
        changes += f"; and {more} more (cloudtrain plan --diff {rehearsal.run})"

    return f"{when}, but changed since: {changes}"


def _packages(plan: Plan) -> str:
    """Return the packages to install, their file, and the place; may be empty."""
    dependencies = plan.spec.dependencies
    source = plan.context.source

    if not dependencies_document(plan):
        return ""
    packages = [hide_passwords(text) for text in dependencies.packages] or list(source.packages)
    shown = ", ".join(packages[:MAX_PACKAGES])
    if len(packages) > MAX_PACKAGES:
        shown += f" and {len(packages) - MAX_PACKAGES} more"

    origin = dependencies.file or source.requirements or plan.where("dependencies")
    where = "on each node, before the start"
    if plan.target.contract == "plain" or plan.is_rehearsal:
        where = "into an environment kept on this machine"

    torch = "; torch stays"
    if dependencies.replace_torch:
        torch = ", torch too if they ask for another"

    return f"{shown}  ← {origin}; {where}{torch}"


def _borrowed(plan: Plan) -> list[str]:
    """Return account settings that come from the cloud's own tools."""
    lines = []
    for path, value in plan.target.borrowed.items():
        lines.append(f"{path} {value}  ← {plan.origins.get(path, '')}")

    return lines


def _overrides(plan: Plan) -> str:
    """Return the members of the requests that the spec sets itself; may be empty."""
    overrides = spec_overrides(plan.spec, plan.target.provider)
    return ", ".join(dotted(override.keys) for override in overrides)


def _request_hint(plan: Plan) -> str:
    if plan.target.placeholders and not plan.is_rehearsal:
        return ", some of them placeholders: --json prints it once they are set"
    return ": --json prints it, --diff last compares it"


def _kind(plan: Plan) -> str:
    name = plan.target.declaration.request_name
    if not name:
        return ""
    if plan.request.wrapper:
        name = f"{plan.request.wrapper} of a {name}"

    return f"{name}, "


def cost(plan: Plan) -> list[str]:
    """Return the price per hour and the highest cost in US dollars, or why they are unknown."""
    estimate = plan.target.cost_estimate
    if plan.is_rehearsal or not plan.target.declaration.is_remote:
        return ["nothing: it runs here"]
    if estimate is None:
        return [f"not counted: {plan.target.declaration.label} tells no price"]
    if estimate.price is None:
        machines = " and ".join(estimate.unpriced or plan.target.instances)
        machines = machines or f"the machines of {plan.target.cluster}"
        return [
            f"unknown: no price for {machines} in"
            f" {plan.target.where}{elsewhere(plan)}{_keep_alive(estimate)}"
        ]

    how = " on demand, spot is less" if plan.spec.resources.spot else " on demand"
    if not plan.target.is_rented:
        how = ""
    lines = [f"{estimate.usd_per_hour:.2f} USD/h{how} ({_price_text(plan, estimate)})"]
    if estimate.prepaid:
        lines[0] = f"0 to {lines[0]}; paid in advance: {', '.join(estimate.prepaid)}"
    where = plan.origins.get(estimate.cap)
    reason = "  (the default; limits.max_runtime changes it)"
    if where:
        reason = f"  ← {where} {estimate.cap.rpartition('.')[2]}"
    if not estimate.price.usd:
        stop = format_duration(estimate.max_seconds)
        return [f"nothing more: {estimate.price.source}; stops after {stop}{reason}"]

    transfers = ""
    if estimate.transfer_seconds:
        allowance = format_duration(estimate.transfer_seconds)
        transfers = f", {allowance} of it for image and data"

    if estimate.dearest_usd:
        transfers += " on the dearest of these machines"
    if estimate.attempts > 1:
        transfers += f", in {estimate.attempts} attempts"

    lines.append(
        f"at most {estimate.worst_usd:.2f} USD of machine time{transfers}: "
        f"stops after {format_duration(estimate.max_seconds)}{reason}"
    )
    lines[-1] += _keep_alive(estimate)
    return lines


def _price_text(plan: Plan, estimate: CostEstimate) -> str:
    """Return the date of a price, and where it comes from."""
    price = estimate.price
    if price is None:
        return ""
    if not plan.target.is_rented:
        return price.source
    if NOT_CHECKED in price.source:
        return f"{price.as_of} {price.source}"

    text = "price"
    if price.as_of:
        text += f" of {price.as_of}"

    age = estimate.age_days(plan.context.time)
    if age is not None and age >= 0:
        text += f", {age} days old"
    if price.source == OWN_TABLE:
        text += " of your own table"

    return text


def _sweep(plan: Plan) -> list[str]:
    """Return the search in two lines: its trials and space, then the objective and the cost."""
    sweep = plan.spec.sweep
    if sweep is None:
        return []
    from cloudtrain.providers import get_provider
    from cloudtrain.sweeps.planning import planned  # few jobs have one

    space = ", ".join(f"{key} {dimension.text()}" for key, dimension in sweep.space.items())
    method: str = sweep.method
    if sweep.engine == "native":
        method = get_provider(plan.target.provider).native_sweeps().method(plan)
    elif sweep.chosen_sampler != method:
        method += f" ({sweep.chosen_sampler})"

    better = "highest" if sweep.objective.goal == "maximize" else "lowest"
    usd = planned(plan, sweep).worst_usd
    most = ""
    if usd is not None:
        most = f", at most {usd:.2f} USD together"

    return [
        f"{method}, {count(sweep.trial_count, 'trial')}, {sweep.parallel} at once: {space}",
        (
            f"for the {better} {sweep.objective.metric}{most}; cloudtrain sweep runs it, submit"
            " this one job"
        ),
    ]


def _keep_alive(estimate: CostEstimate) -> str:
    """Return the cost of machines that are kept for the next job; may be empty."""
    if not estimate.kept_seconds:
        return ""

    usd = ""
    if estimate.kept_usd is not None:
        usd = f": {estimate.kept_usd:.2f} USD of that"

    return (
        f"; its machines are kept for {format_duration(estimate.kept_seconds)} after the end, and"
        f" billed{usd}"
    )


def _limits(plan: Plan) -> str:
    limits = plan.spec.limits
    estimate = plan.target.cost_estimate
    seconds = estimate.max_seconds if estimate else limits.max_runtime
    runtime = "no time limit"
    if seconds:
        runtime = f"stops after {format_duration(seconds)}"

    origin = plan.origins.get("limits.max_runtime")
    if origin and seconds == limits.max_runtime:
        runtime += f"  ← {origin} max_runtime"

    early = plan.request.job.stop_after_seconds
    saves = ""
    if early:
        saves = f"; it saves and stops by itself after {format_duration(early)}"

    return f"{runtime}; {count(limits.restarts, 'restart')} in place{saves}"


def _set_elsewhere(plan: Plan) -> list[tuple[str, str]]:
    """Return the fields that flags set, with the flag: the file does not have them."""
    flags = [(path, origin) for path, origin in plan.origins.items() if origin.startswith("--")]
    # The section around a field has the same origin, and need not be shown too.
    shown = []
    for path, origin in flags:
        if not any(_is_around(path, another) for another, _ in flags):
            shown.append((path, origin))

    return shown


def _is_around(path: str, another: str) -> bool:
    return another.startswith((f"{path}.", f"{path}["))


def difference(plan: Plan, against: str, data_dir: str | None) -> list[str]:
    """Return a unified diff of two requests and their job documents; may be empty.

    Run ids, times of planning and secrets are left out. `against`: a run, or a JSON file with a request
    alone. Raise UsageError if the file is not JSON, RunNotFound if the run is unknown.
    """
    from difflib import unified_diff

    request = plan.request
    new = {"request": unfolded(request.document), "job": request.job.to_json()}

    if os.path.isfile(against):  # noqa: PTH113  (false, not an error, for what no disk can hold)
        try:
            old_request = json.loads(read_regular_text(against))
        except OSError as error:
            raise UsageError(f"{against}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            hint = "cloudtrain plan --json > FILE writes one"
            raise UsageError(f"{against}: is not JSON: {error}", hint=hint) from None

        old = {"request": unfolded(old_request)}
        other_id = _id_of(old_request)
        new = {"request": new["request"]}
    else:
        from cloudtrain.api.lookup import find_run
        from cloudtrain.runs.store import sweep_ids

        if against in sweep_ids(data_folder(data_dir)):
            hint = "cloudtrain sweep --dry-run --json prints what a native sweep sends"
            raise UsageError(f"{against} is a sweep, and plan compares one job", hint=hint)

        run = find_run(against, data_dir=data_dir)
        old = {"request": unfolded(run.folder.document("request.json"))}
        other_id = run.id

        if (run.folder.path / "job.json").exists():
            old["job"] = run.folder.document("job.json")

    sides = [without_varying(old, other_id), without_varying(new, plan.run_id)]
    is_same = _lines(sides[0]) == _lines(sides[1])
    masker.add(secrets_in(sides))
    before, after = (masker.mask_text("\n".join(_lines(side))).split("\n") for side in sides)
    lines = list(unified_diff(before, after, against, "plan", lineterm=""))

    if not lines and not is_same:
        return ["only secrets differ"]

    return lines


def _id_of(document: Any) -> str:
    """Return the run id in a request of any provider; may be empty."""
    named = document if isinstance(document, dict) else {}
    names = [named.get(key) for key in ("run_id", "TrainingJobName", "jobName", "name")]
    return next((str(name) for name in names if name), "")


def _lines(document: Any) -> list[str]:
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
