"""Checks of a plan before anything is started or paid for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cloudtrain.api.organization_rules import organization_issues
from cloudtrain.api.package_checks import package_issues
from cloudtrain.api.trainer_arguments import factory_issues, trainer_issues
from cloudtrain.errors import Issue, Keys, RefusedError, SpecError, warning
from cloudtrain.planning.launch import command_words
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import spec_overrides
from cloudtrain.providers import get_provider
from cloudtrain.shown_text import listed
from cloudtrain.spec.entrypoint import KEEP_LF, MAX_LINE
from cloudtrain.spec.fields import Arguments, read_arguments
from cloudtrain_wire.bounded_files import open_regular_file
from cloudtrain_wire.rank_variables import is_set_by_torchrun
from cloudtrain_wire.secret_values import is_secret_variable, secret_words

_PLAIN_SECRET = "looks like a secret, and whoever may look at the job reads it"  # noqa: S105


def find_issues(plan: Plan) -> list[Issue]:
    """Return the issues by rules, tables and disk, which a plan carries as `Plan.issues`.

    They come from the provider of the request, the provider that runs it, and the shared trainer.
    No network, no process.
    """
    issues: list[Issue] = []
    issues += get_provider(plan.target.provider).rules(plan)
    issues += trainer_issues(plan)
    issues += _image_issues(plan)
    issues += package_issues(plan)
    issues += factory_issues(plan)
    issues += plain_secret_issues(plan)
    issues += shell_variable_issues(plan)
    issues += line_end_issues(plan)
    issues += organization_issues(plan)
    issues += rank_variable_issues(plan)

    if plan.context.strict:
        issues += security_issues(plan)
    if plan.is_rehearsal:
        issues += get_provider(plan.provider).rules(plan)

    return issues


def _image_issues(plan: Plan) -> list[Issue]:
    if plan.target.image is None:
        return []

    from cloudtrain.api.image_checks import image_issues

    return image_issues(plan)


def preflight(plan: Plan, *, starting: bool = True) -> list[Issue]:
    """Return the plan's issues and those that a process, an engine or an SDK finds, errors first.

    `starting`: True if the job starts unless a check refuses it; see `Provider.checks`.
    """
    issues = list(plan.issues)
    refused_paths = {issue.path for issue in issues if issue.path and issue.is_error}
    for provider in dict.fromkeys((plan.target.provider, plan.provider)):
        checks = get_provider(provider).checks(plan, starting=starting)
        issues += [issue for issue in checks if issue.path not in refused_paths]

    return sorted(issues, key=lambda issue: not issue.is_error)


def plain_secret_issues(plan: Plan) -> list[Issue]:
    """Return secrets in plain text among variables and arguments: errors in strict settings."""
    stores = plan.target.declaration.secret_stores
    addresses = [f"{store}:{form}" for store, form in stores.items()]
    address = addresses[0] if addresses else "env:NAME"
    severity: Literal["error", "warning"] = "warning"

    if plan.context.strict and not plan.is_rehearsal:
        severity = "error"

    issues = []
    env = plan.spec.env
    for name in env:
        if is_secret_variable(name, env[name]):
            hint = f"secrets: {{{name}: {{{plan.target.provider}: '{address}'}}}}"
            issues.append(Issue(("env", name), _PLAIN_SECRET, hint, severity=severity))

    for path, name in secret_arguments(plan.spec.args, command_words(plan.spec)):
        variable = re.sub(r"\W", "_", name).upper() or "TOKEN"
        place = f"secrets: {{{variable}: {{{plan.target.provider}: '{address}'}}}}"
        hint = f"{place} hands it to the program as the variable {variable}"
        issues.append(Issue(path, _PLAIN_SECRET, hint, severity=severity))

    for override in spec_overrides(plan.spec, plan.target.provider):
        value = override.value
        if isinstance(value, str) and is_secret_variable(str(override.keys[-1]), value):
            hint = f"secrets: {{NAME: {{{plan.target.provider}: '{address}'}}}}"
            issues.append(Issue(override.keys, _PLAIN_SECRET, hint, severity=severity))

    return [replace(issue, origin=_line_of(plan, issue)) for issue in issues]


def secret_arguments(args: Arguments, command: Sequence[str] = ()) -> Iterator[tuple[Keys, str]]:
    """Yield the field and the name (may be "") of each argument that is probably a secret.

    `command`: words of the entrypoint, if it is a command.
    """
    for _, option in secret_words(command):
        yield ("entrypoint",), option.lstrip("-+")

    if not isinstance(args.values, Mapping):
        for at, option in secret_words(args.argv):
            yield ("args", at), option.lstrip("-+")

        return

    for key, value in args.values.items():
        if any(secret_words(read_arguments({key: value}).argv)):
            yield ("args", key), key


def shell_variable_issues(plan: Plan) -> Iterator[Issue]:
    """Yield a warning for each argument such as `$RANK`, which no shell expands."""
    values = plan.spec.args.values
    words: list[tuple[Keys, Any]] = []
    if isinstance(values, Mapping):
        words += [(("args", key), value) for key, value in values.items()]
    else:
        words += [(("args", at), value) for at, value in enumerate(values)]

    words += [(("entrypoint",), word) for word in command_words(plan.spec)]
    for path, word in words:
        if re.fullmatch(r"(--?[\w-]+=)?\$(\w+|\{\w+\})", str(word)):
            message = f"{word!r} reaches the program as it is: no shell reads it"
            hint = "read the variable in the program; or launcher: none, and [bash, -c, '…']"
            issue = warning(message, hint, path=path)
            yield replace(issue, origin=plan.where(issue.field))


def line_end_issues(plan: Plan) -> Iterator[Issue]:
    """Yield a warning for each shell script of a command whose lines end as on Windows."""
    for word in dict.fromkeys(command_words(plan.spec)[1:]):
        script = Path(plan.context.source.root, word)
        if not word.endswith(".sh") or not script.is_file():
            continue

        with suppress(OSError), open_regular_file(script) as file:
            if file.readline(MAX_LINE).endswith(b"\r\n"):
                message = f"the lines of {word} end in CRLF, and it is sent unchanged"
                yield plan.located(warning(message, KEEP_LF, path=("entrypoint",)))


def rank_variable_issues(plan: Plan) -> Iterator[Issue]:
    """Yield a warning for each variable of the job that the launcher sets itself."""
    for field, names in (("env", plan.spec.env), ("secrets", plan.spec.secrets)):
        for name in filter(is_set_by_torchrun, names):
            message = "the launcher sets this for each rank, and drops the job's value"
            hint = "resources.nodes, resources.processes and launch decide it; or another name"
            yield plan.located(warning(message, hint, path=(field, name)))


def security_issues(plan: Plan) -> list[Issue]:
    """Return the security findings of the job: errors in strict settings.

    Each has the line of its field, of the section around it, or of the resources. A rehearsal has
    none, because it sends nothing.
    """
    if plan.is_rehearsal:
        return []

    severity: Literal["error", "warning"] = "warning"
    why = ""
    if plan.context.strict:
        severity = "error"
        why = '; policy = "strict" in the settings makes it an error'

    issues = []
    for issue in get_provider(plan.target.provider).security_findings(plan):
        hint = f"{issue.hint}{why}"
        line = _line_of(plan, issue)
        issues.append(replace(issue, severity=severity, hint=hint, origin=line))

    return issues


def _line_of(plan: Plan, issue: Issue) -> str:
    for path in (issue.field, "resources", "entrypoint", "name"):
        if place := plan.where(path):
            return place

    return ""


def raise_errors(issues: Sequence[Issue]) -> None:
    """Raise all errors: SpecError if one is about a field of the spec, else RefusedError."""
    errors = [issue for issue in issues if issue.is_error]
    if not errors:
        return
    if any(issue.path for issue in errors):
        raise SpecError(errors)

    raise RefusedError("\n".join(issue.render() for issue in errors), issues=errors)


def start_notes(plan: Plan, issues: Sequence[Issue]) -> list[str]:
    """Return notes before a start, one sentence each: warnings and facts of the plan."""
    notes = []
    for issue in issues:
        if issue.is_error:
            continue

        note = issue.line()
        if issue.hint:
            note += f" ({issue.hint})"

        notes.append(note)

    if plan.host.image and plan.host.image.recipe:
        notes.append(
            f"the image is built from {plan.host.image.recipe.dockerfile} first, if it is new"
        )

    if plan.context.source.warning:
        notes.append(plan.context.source.warning)
    if plan.context.source.missed:
        notes.append(_missed_note(plan.context.source.missed))
    if plan.context.source.secrets:
        notes.append(secrets_note(plan.context.source.secrets))
    if plan.unused:
        notes.append(f"not used by the {plan.target.provider} provider: {', '.join(plan.unused)}")

    return notes


def _missed_note(missed: Sequence[str]) -> str:
    """Return a sentence about what the job names and the source lacks, and how to include it."""
    return (
        f"not in the source: {listed(missed)}; data belongs in `inputs`, and !/{missed[0].partition(' (')[0]}"
        " in .cloudtrainignore takes this one along"
    )


def secrets_note(paths: Sequence[str]) -> str:
    """Return a sentence about likely secrets left out of the source, and how to include one."""
    return (
        f"left out of the source, as likely to hold secrets: {listed(paths)} (`secrets:` in the spec hands"
        f" a job its secrets; !{paths[0]} in .cloudtrainignore takes this one along)"
    )
