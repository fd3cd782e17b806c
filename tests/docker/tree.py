"""SageMaker's /opt/ml in a folder, to be copied into a container: configuration, job document,
source archive.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from cloudtrain.bundle import payload_files
from cloudtrain.source.scan import pack, scan
from tests.entrypoints.launchers import document
from tests.entrypoints.platforms import resources

TRAINER: dict[str, Any] = {"kind": "trainer", "target": "", "processes": 2}


def tree(
    folder: Path, script: str = "", host: str = "localhost", interface: str = "lo", **job: Any
) -> Path:
    """The tree of a job of one node; its program is `script`, or what the job says."""
    base = folder / "ml"
    source = folder / "source"
    for name in (
        "input/config",
        "input/data/cloudtrain-job",
        "input/data/cloudtrain-source",
        "model",
        "output/data",
    ):
        (base / name).mkdir(parents=True)
    (base / "input/config/resourceconfig.json").write_text(
        json.dumps(resources(host, (host,), network_interface_name=interface))
    )
    (base / "input/config/hyperparameters.json").write_text("{}")
    (base / "input/data/cloudtrain-job/job.json").write_text(json.dumps(document(**job)))
    source.mkdir()
    (source / "train.py").write_text(script)
    archive = pack(scan(source, payload_files()), folder / "store")
    shutil.copy(archive, base / "input/data/cloudtrain-source/source.tar.gz")
    return base
