"""What is wrong with a plan for Azure ML, at the spec line that it comes from, and what stands in the way here."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.azure.request import document_of, input_name
from cloudtrain.providers.azure.rules import broken_rules, notes
from cloudtrain.providers.cloud.notes import idle_note, image_notes, rehearsal_notes
from cloudtrain.source.inputs import MAX_NAMED, input_problem, list_input

BUILD_FILES, BUILD_BYTES = 100, 1_000_000
INSTALL = 'pip install "cloudtrain[azure]"'


def rule_issues(plan: Plan) -> list[Issue]:
    """Azure ML's rules, and what is to be uploaded. Imports no SDK."""
    found = [*map(plan.located, broken_rules(plan)), *_uploads(plan)]
    messages = [*rehearsal_notes(plan), *notes(plan), *image_notes(plan), *idle_note(plan)]
    if not plan.is_rehearsal and not _has_sdk():
        messages.append(f"azure-ai-ml is not installed, and a submit needs it: {INSTALL}")
    return found + [warning(message) for message in messages]


def local_issues(plan: Plan) -> list[Issue]:
    """Whether the SDK is there that will send it."""
    if plan.is_rehearsal or _has_sdk():
        return []
    return [Issue((), "azure-ai-ml is not installed", INSTALL)]


def _uploads(plan: Plan) -> list[Issue]:
    """What is to be uploaded from this machine, and is not there or too large."""
    found: list[Issue] = []
    document = document_of(plan)
    environment = document["environment"]
    if isinstance(environment, dict) and "build" in environment:
        build = environment["build"]
        dockerfile = Path(build["path"], build["dockerfile_path"])
        found += map(plan.located, _build_issues(dockerfile))
        for name in (".amlignore", ".gitignore"):
            if (dockerfile.parent / name).is_file():
                message = f"azure-ai-ml leaves out of the build what {dockerfile.parent / name} says"
                found.append(warning(message, ".dockerignore is for builds"))
    for name in plan.spec.inputs if not plan.is_rehearsal else ():
        item = document["inputs"][input_name(name)]
        if not Path(item["path"]).is_absolute():
            continue
        if not os.path.exists(item["path"]):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            found.append(plan.located(Issue(("inputs", name), f"no such file or folder: {item['path']}")))
        elif why := input_problem(item["path"]):
            found.append(plan.located(Issue(("inputs", name), why)))
    return found


def _build_issues(dockerfile: Path) -> list[Issue]:
    """What keeps Azure ML from building it: by its limits, 100 files of 1 MB in all beside a Dockerfile."""
    at = ("image", "build")
    if not dockerfile.is_file():
        return [Issue(at, f"no such file: {dockerfile}")]
    size = 0
    for count, path in enumerate((path for path in dockerfile.parent.rglob("*") if path.is_file()), 1):
        size += path.stat().st_size
        if count > BUILD_FILES or size > BUILD_BYTES:
            break  # it may be the folder of a whole project, and a plan has no time to lose
    else:
        problems = list_input(str(dockerfile.parent)).problems
        return [Issue(at, f"{dockerfile.parent}: {', '.join(problems[:MAX_NAMED])}")] if problems else []
    message = f"{dockerfile.parent} holds more than Azure ML builds from: {BUILD_FILES} files of 1 MB in all"
    return [Issue(at, message, "a folder of its own for the Dockerfile, or build and push the image yourself")]


def _has_sdk() -> bool:
    """Looked for without importing any of it, not even the packages around it."""
    around = find_spec("azure")
    return around is not None and any(Path(p, "ai", "ml").is_dir() for p in around.submodule_search_locations or ())
