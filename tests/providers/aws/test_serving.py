"""The code of the guide of serving, with the SDK of SageMaker."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pages import DOCS, blocks
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.operations import submitted

KINDS = {
    "Model": "model",
    "EndpointConfig": "endpoint-config",
    "Endpoint": "endpoint",
    "ModelPackageGroup": "model-package-group",
    "ModelPackage": "model-package",
}
"""Kind of a thing in calls -> in ARNs."""
DESCRIBED = {
    "CreationTime": 0,
    "LastModifiedTime": 0,
    "EndpointStatus": "InService",
}
"""Members that the service adds to a new resource; the imitation checks all by the service's model."""


def test_the_guide_serves_and_registers_the_model_of_the_run(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: dict[str, dict[str, Any]] = {}

    def create(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        created[kind] = body
        return {f"{kind}Arn": f"arn:aws:sagemaker:us-east-1:123456789012:{KINDS[kind]}/digits-1"}

    def describe(kind: str, _: object) -> dict[str, Any]:
        members = cloud.service.model.operation_model(f"Describe{kind}").output_shape.members
        answer = DESCRIBED | created[kind] | create(kind, created[kind])
        return {name: value for name, value in answer.items() if name in members}

    for kind in KINDS:
        monkeypatch.setitem(cloud.service.operations, f"Create{kind}", partial(create, kind))
        monkeypatch.setitem(cloud.service.operations, f"Describe{kind}", partial(describe, kind))

    pytest.importorskip("sagemaker.core.utils.utils").SageMakerClient.reset()
    run = submitted("served-1")
    model = run.artifacts()["model"]
    artifacts = {"S3ModelArtifacts": model}
    cloud.service.jobs[run.id].update(TrainingJobStatus="Completed", ModelArtifacts=artifacts)

    known: dict[str, Any] = {}
    for block in blocks(DOCS / "guides/serving.md"):
        if "sagemaker" in block.notes.get("file", ""):
            (tmp_path / "shown.py").write_text(block.text)
            known |= runpy.run_path(str(tmp_path / "shown.py"), init_globals=known)

    container = created["Model"]["PrimaryContainer"]
    assert (created["Model"]["ModelName"], container["ModelDataUrl"]) == (run.id, model)
    (variant,) = created["EndpointConfig"]["ProductionVariants"]
    assert variant["ModelName"] == created["Endpoint"]["EndpointConfigName"] == run.id
    (packaged,) = created["ModelPackage"]["InferenceSpecification"]["Containers"]
    assert packaged["ModelDataUrl"] == model
    assert packaged["Image"] == container["Image"]
