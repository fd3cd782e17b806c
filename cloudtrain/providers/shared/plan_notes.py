"""Notes of a plan on a cloud: its image, idle machines, limits of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloudtrain.errors import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.selection import PlannedImage
from cloudtrain.planning.target import CloudConfig
from cloudtrain.providers.shared.uploads import upload_issues
from cloudtrain.settings import variable_of


def cloud_warnings(plan: Plan, notes: Iterable[str]) -> list[Issue]:
    """Return the warnings that both clouds share, with the cloud's own `notes`; and bad inputs."""
    messages = rehearsal_notes(plan)
    messages += notes
    messages += idle_note(plan)
    issues = list(map(plan.located, upload_issues(plan)))
    issues += map(warning, messages)
    return issues


def idle_note(plan: Plan) -> list[str]:
    """Return a note if more GPUs per node are paid for than processes are started."""
    if plan.spec.launcher == "none":  # a command drives all of them, as it likes
        return []
    idle = plan.gpus - plan.processes
    per_node = f"{idle} of {plan.gpus} GPUs per node"
    if idle > 0:
        return [f"{per_node} stay idle unless a process drives several"]

    return []


def rehearsal_notes(plan: Plan) -> list[str]:
    """Describe how a rehearsal, or a plan with placeholders, differs from the real job."""
    if not plan.is_rehearsal:
        return _preview_notes(plan)

    config = plan.target.config_as(CloudConfig)
    spec = plan.spec
    name = plan.target.provider
    host_image = plan.host.image_address
    is_same_address = host_image == plan.target.image_address

    notes = []
    if not is_same_address and not _same_recipe(plan.host.image, plan.target.image):
        notes.append(f"rehearsed {_environment(host_image)}, not in the image")
    if config.placeholders:
        missing = ", ".join(config.placeholders)
        notes.append(f"{missing} not set: rehearsed with a placeholder; {name} will ask for it")

    notes += _refusals(plan)
    host_providers = {plan.host.provider, *plan.host.declaration.fallback_providers}

    local_inputs = [name for name, item in spec.inputs.items() if host_providers & set(item.uri)]
    if local_inputs:
        how = "mounted read-only" if host_image else "what the job writes there stays"
        notes.append(f"inputs {', '.join(local_inputs)} are the local folders themselves: {how}")
    if spec.checkpoints.uri:
        notes.append(f"checkpoints stay here: {spec.checkpoints.uri} is neither read nor written")

    return notes


def _preview_notes(plan: Plan) -> list[str]:
    """List missing settings of the account, and obstacles to the real job."""
    missing = plan.target.placeholders
    if not missing:
        return []

    variables = variable_of(missing[0])
    if len(missing) > 1:
        variables += ", …"

    notes = [
        f"{', '.join(missing)} not set, shown as placeholders: set these before you submit, in"
        f" cloudtrain.toml or {variables}"
    ]
    return notes + _refusals(plan)


def _refusals(plan: Plan) -> list[str]:
    """Return the limits for which the cloud itself will refuse the job."""
    refused = f"with --provider {plan.target.provider} it will be refused"
    return [f"{refused}: {message}" for message in plan.target.config_as(CloudConfig).unpaid]


def many_nodes(plan: Plan, usual: int, raised_by: str) -> Iterator[Issue]:
    """Yield a warning for more nodes than an account usually may use at once."""
    nodes = plan.spec.resources.nodes
    if nodes > usual:
        message = f"{nodes} nodes are more than most quotas allow ({usual})"
        yield warning(message, raised_by, path=("resources", "nodes"))


def unreadable_checkpoints(plan: Plan, service: str, scheme: str) -> Iterator[Issue]:
    """Yield an issue if the checkpoints to resume from are in another storage."""
    resume = plan.context.resume_from
    if resume and not resume.startswith(scheme) and not plan.is_rehearsal:
        hint = f"start without them: cloudtrain rerun {plan.context.resume_run} --fresh"
        message = f"the earlier run's checkpoints are where {service} cannot read them: {resume}"
        yield Issue((), message, hint)


def _same_recipe(first: PlannedImage | None, second: PlannedImage | None) -> bool:
    """Return True if two images have the same files and arguments, for any architecture."""
    if not first or not first.recipe or not second or not second.recipe:
        return False

    recipes = (first.recipe, second.recipe)
    parts = [(recipe.dockerfile, recipe.context, recipe.args) for recipe in recipes]
    return parts[0] == parts[1]


def _environment(host_image: str) -> str:
    if not host_image:
        return "with this machine's Python and torch"

    return f"in {host_image}"


def unused_issues(plan: Plan, *fields: str) -> Iterator[Issue]:
    """Yield an issue for each field of the provider's section that only a native sweep uses."""
    provider = plan.target.provider
    sweep = plan.spec.sweep
    if plan.is_rehearsal or (sweep is not None and sweep.engine == "native"):
        return

    for field in fields:
        if getattr(getattr(plan.spec, provider, None), field, None):
            hint = "the other engines read the section sweep alone"
            yield Issue((provider, field), "needs sweep.engine: native", hint)
