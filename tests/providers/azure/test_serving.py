"""The code of the guide of serving, with the SDK of Azure ML, as far as it runs without a service."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from pages import DOCS, blocks
from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.operations import submitted


def test_the_guide_registers_and_serves_the_model_of_the_run(
    cloud: AzureCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.ai.ml import MLClient, operations

    run = submitted("served-1")
    client: Any = SimpleNamespace(
        models=create_autospec(operations.ModelOperations, instance=True),
        online_endpoints=create_autospec(operations.OnlineEndpointOperations, instance=True),
        online_deployments=create_autospec(operations.OnlineDeploymentOperations, instance=True),
    )
    client.models.create_or_update.side_effect = lambda model: model
    from_config = create_autospec(MLClient.from_config, return_value=client)
    monkeypatch.setattr(MLClient, "from_config", from_config)
    (code,) = (b for b in blocks(DOCS / "guides/serving.md") if "azure" in b.notes.get("file", ""))
    (tmp_path / "shown.py").write_text(code.text)
    runpy.run_path(str(tmp_path / "shown.py"))

    (model,) = client.models.create_or_update.call_args.args
    (endpoint,) = client.online_endpoints.begin_create_or_update.call_args.args
    (deployment,) = client.online_deployments.begin_create_or_update.call_args.args
    assert (model.path, model.type) == (run.artifacts()["model"], "mlflow_model")
    assert (deployment.endpoint_name, deployment.model) == (endpoint.name, model)
    assert (deployment.instance_type, deployment.instance_count) == ("Standard_DS3_v2", 1)
    assert client.online_endpoints.invoke.call_args.args == (endpoint.name,)
