"""Check a plan for Azure ML and its files to upload; issues name lines of the spec."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.azure.request import input_name
from cloudtrain.providers.azure.rules import broken_rules, notes
from cloudtrain.providers.shared.notes import idle_note, image_notes, rehearsal_notes
from cloudtrain.source.inputs import MAX_NAMED, input_problem, list_input

BUILD_FILES = 100
BUILD_BYTES = 1_000_000
"""Limits of Azure ML for the folder of a Dockerfile."""
INSTALL = 'pip install "cloudtrain[azure]"'


def rule_issues(plan: Plan) -> list[Issue]:
    """Return broken rules of Azure ML, and problems with the files to upload. Imports no SDK."""
    issues = [*map(plan.located, broken_rules(plan)), *_uploads(plan)]
    messages = [*rehearsal_notes(plan), *notes(plan), *image_notes(plan), *idle_note(plan)]
    if not plan.is_rehearsal and not _has_sdk():
        messages.append(f"azure-ai-ml is not installed, and a submit needs it: {INSTALL}")
    return issues + [warning(message) for message in messages]


def local_issues(plan: Plan) -> list[Issue]:
    """Return an error if the SDK is not installed; a rehearsal does not need it."""
    if plan.is_rehearsal or _has_sdk():
        return []
    return [Issue((), "azure-ai-ml is not installed", INSTALL)]


def _uploads(plan: Plan) -> list[Issue]:
    """Return problems with local inputs and the Dockerfile: missing, empty or too large."""
    issues: list[Issue] = []
    document = plan.request.document
    environment = document["environment"]
    if isinstance(environment, dict) and "build" in environment:
        build = environment["build"]
        dockerfile = Path(build["path"], build["dockerfile_path"])
        issues += map(plan.located, _build_issues(dockerfile))
        for name in (".amlignore", ".gitignore"):
            if (dockerfile.parent / name).is_file():
                message = (
                    f"azure-ai-ml leaves out of the build the files that {dockerfile.parent / name}"
                    " lists"
                )
                issues.append(warning(message, ".dockerignore is for builds"))
    for name in plan.spec.inputs if not plan.is_rehearsal else ():
        item = document["inputs"][input_name(name)]
        if not Path(item["path"]).is_absolute():
            continue
        if not os.path.exists(item["path"]):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            issues.append(
                plan.located(Issue(("inputs", name), f"no such file or folder: {item['path']}"))
            )
        elif why := input_problem(item["path"]):
            issues.append(plan.located(Issue(("inputs", name), why)))
    return issues


def _build_issues(dockerfile: Path) -> list[Issue]:
    """Return why Azure ML cannot build this Dockerfile, within `BUILD_FILES` and `BUILD_BYTES`."""
    path = ("image", "build")
    if not dockerfile.is_file():
        return [Issue(path, f"no such file: {dockerfile}")]
    size = 0
    files = (file for file in dockerfile.parent.rglob("*") if file.is_file())
    for count, file in enumerate(files, 1):
        size += file.stat().st_size
        if count > BUILD_FILES or size > BUILD_BYTES:
            break  # it may be the folder of a large project
    else:
        problems = list_input(str(dockerfile.parent)).problems
        if not problems:
            return []
        return [Issue(path, f"{dockerfile.parent}: {', '.join(problems[:MAX_NAMED])}")]
    message = (
        f"{dockerfile.parent} holds more than Azure ML builds from: {BUILD_FILES} files of 1 MB"
        " in all"
    )
    return [
        Issue(
            path,
            message,
            "a folder of its own for the Dockerfile, or build and push the image yourself",
        )
    ]


def _has_sdk() -> bool:
    """Return True if azure-ai-ml is installed, without importing it or its packages."""
    azure = find_spec("azure")
    return azure is not None and any(
        Path(p, "ai", "ml").is_dir() for p in azure.submodule_search_locations or ()
    )
