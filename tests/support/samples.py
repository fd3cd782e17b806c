"""Starting points of several tests: a folder of files, a run that was just submitted, events,
settings of accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.runs.files import strict_json
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore

BORN: dict[str, Any] = {
    "type": "submitting",
    "time": 100.0,
    "name": "digits",
    "provider": "local",
    "contract": "plain",
    "nodes": 2,
    "processes": 4,
}

AWS_ACCOUNT = {
    "CLOUDTRAIN_AWS_REGION": "us-east-1",
    "CLOUDTRAIN_AWS_ROLE": "arn:aws:iam::123456789012:role/train",
    "CLOUDTRAIN_AWS_BUCKET": "my-bucket",
}
AZURE_ACCOUNT = {
    "CLOUDTRAIN_AZURE_SUBSCRIPTION": "00000000-0000-0000-0000-000000000000",
    "CLOUDTRAIN_AZURE_RESOURCE_GROUP": "my-group",
    "CLOUDTRAIN_AZURE_WORKSPACE": "my-workspace",
    "CLOUDTRAIN_AZURE_LOCATION": "eastus",
}
"""Settings of accounts that no test calls."""


def born(
    store: RunStore, run_id: str, *events: dict[str, Any], created: float = 100.0
) -> RunFolder:
    """A run folder with its first events."""
    folder = store.create(run_id, {"plan.json": "{}"})
    write_events(folder, {**BORN, "time": created}, *events)
    return folder


def write_events(folder: RunFolder, *events: Mapping[str, Any]) -> None:
    """Append events to a run unchanged, one line of JSON each, valid or not."""
    with folder.events_file.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(strict_json(event) + "\n" for event in events)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """A folder with these files."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
