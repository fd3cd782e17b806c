"""What is wrong with a plan for Azure ML, at the spec line that it comes from, and what stands in the way here."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from cloudtrain.azure.request import document_of, input_name
from cloudtrain.azure.rules import broken_rules, notes
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding, finding
from cloudtrain.remote.request import idle_note, rehearsal_notes

BUILD_FILES, BUILD_BYTES = 100, 1_000_000
INSTALL = 'pip install "cloudtrain[azure]"'


def rule_findings(plan: Plan) -> list[Finding]:
    """Azure ML's rules. Quick, and needs no SDK."""
    found = [finding(plan, *problem) for problem in broken_rules(plan)]
    said = [*rehearsal_notes(plan), *notes(plan), *idle_note(plan)]
    return found + [Finding(severity="warning", message=message) for message in said]


def local_findings(plan: Plan) -> list[Finding]:
    """Whether the SDK is there that will send it, and what is to be uploaded. No network."""
    found = []
    if not plan.is_rehearsal and not _has_sdk():
        found.append(Finding(severity="error", message="azure-ai-ml is not installed", hint=INSTALL))
    document = document_of(plan)
    environment = document["environment"]
    if isinstance(environment, dict) and "build" in environment:
        build = environment["build"]
        dockerfile = Path(build["path"], build["dockerfile_path"])
        found += [finding(plan, ("image", "build"), *problem) for problem in _build_problems(dockerfile)]
    for name in plan.spec.inputs if not plan.is_rehearsal else ():
        item = document["inputs"][input_name(name)]
        if not Path(item["path"]).is_absolute():
            continue
        if not os.path.exists(item["path"]):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            found.append(finding(plan, ("inputs", name), f"no such file or folder: {item['path']}"))
    return found


def _build_problems(dockerfile: Path) -> list[tuple[str, str | None]]:
    """What keeps Azure ML from building it: by its limits, 100 files of 1 MB in all beside a Dockerfile."""
    if not dockerfile.is_file():
        return [(f"no such file: {dockerfile}", None)]
    files = [path for path in dockerfile.parent.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if len(files) <= BUILD_FILES and size <= BUILD_BYTES:
        return []
    message = (
        f"{dockerfile.parent} holds {len(files)} files of {size} bytes; Azure ML builds from {BUILD_FILES} of 1 MB"
    )
    return [(message, "a folder of its own for the Dockerfile, or build and push the image yourself")]


def _has_sdk() -> bool:
    """Looked for without importing it, which takes a second."""
    try:
        return find_spec("azure.ai.ml") is not None
    except ModuleNotFoundError:
        return False
