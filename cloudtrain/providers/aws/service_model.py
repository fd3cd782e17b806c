"""Check a request by SageMaker's service model. Pure.

A plan must not spend time on the import of an SDK. `create_training_job.json` in the catalog is the
part of botocore's service model about training and tuning jobs. tests/unit/test_service_model.py
compares it with botocore, and updates it.

botocore itself checks required members, types and `min` only: the service would find a wrong enum
value, a name that is too long, or a pattern mismatch after the upload. An enum, a pattern or a
maximum goes out of date; violations are warnings that name the version of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.catalog import model
from cloudtrain.errors import Issue
from cloudtrain.providers.shared.shapes import TableShape, violations

TABLE = "create_training_job.json"
OPERATION_INPUT = "CreateTrainingJobRequest"
TUNING_INPUT = "CreateHyperParameterTuningJobRequest"


def request_violations(body: Mapping[str, Any], operation: str = OPERATION_INPUT) -> list[Issue]:
    """Return violations of the table. `operation`: OPERATION_INPUT or TUNING_INPUT."""
    return violations(TableShape.named(operation, model(TABLE)["shapes"]), body)


def model_name() -> str:
    """Return the name of the model: `botocore 1.43.4`."""
    return f"botocore {model(TABLE)['botocore']}"
