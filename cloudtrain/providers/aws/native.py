"""The edge to the sagemaker SDK: for those who want its own objects. Nothing of ours depends on it."""

from __future__ import annotations

from typing import Any

import boto3

from cloudtrain.errors import UsageError


def native_job(name: str, region: str) -> Any:
    """The `sagemaker.core` TrainingJob of a job: `.refresh()`, `.wait()`, `.stop()` and all its
    fields.

    UsageError when the SDK is not installed.
    """
    try:
        from sagemaker.core.resources import TrainingJob
    except ImportError as error:
        hint = 'pip install "cloudtrain[sagemaker]"'
        raise UsageError(f"the sagemaker SDK is not installed: {error}", hint=hint) from None
    return TrainingJob.get(
        training_job_name=name, session=boto3.session.Session(region_name=region), region=region
    )
