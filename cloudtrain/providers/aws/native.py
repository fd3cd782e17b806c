"""Access to objects of the sagemaker SDK. Our own code does not depend on it."""

from __future__ import annotations

from typing import Any

import boto3

from cloudtrain.errors import UsageError


def native_job(name: str, region: str) -> Any:
    """Return the `sagemaker.core` TrainingJob: `.refresh()`, `.wait()`, `.stop()`, fields.

    Raise UsageError if the SDK is not installed.
    """
    try:
        from sagemaker.core.resources import TrainingJob
    except ImportError as error:
        hint = 'pip install "cloudtrain[sagemaker]"'
        raise UsageError(f"the sagemaker SDK is not installed: {error}", hint=hint) from None
    return TrainingJob.get(
        training_job_name=name, session=boto3.session.Session(region_name=region), region=region
    )
