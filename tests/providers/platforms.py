"""Platforms of the conformance suite for each provider: imitated clouds and this machine."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.testing.conformance import GREETING, GREETING_FILE, SECRET, Platform
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import IMAGE, AzureCloud
from tests.support.engine import engine_and_image


def greeting(folder: Path) -> Path:
    """A folder with the suite's input."""
    data = folder / "input data"
    data.mkdir()
    (data / GREETING_FILE).write_text(GREETING)
    return data


@contextmanager
def without(*prefixes: str) -> Iterator[None]:
    """Remove a person's variables with these prefixes inside, and afterwards those of an SDK."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def local(folder: Path) -> Iterator[Platform]:
    """This machine."""
    yield Platform(
        provider="local",
        input=str(greeting(folder)),
        secret="env:MY_SECRET",
        env={"MY_SECRET": SECRET},
    )


@contextmanager
def docker(folder: Path) -> Iterator[Platform]:
    """Provide the Docker engine of this machine; skip without one."""
    with engine_and_image() as (_, image):
        yield Platform(
            provider="docker",
            job={"image": {"docker": image}},
            input=str(greeting(folder)),
            secret="env:MY_SECRET",
            env={"MY_SECRET": SECRET},
        )


@contextmanager
def aws(folder: Path) -> Iterator[Platform]:
    """SageMaker, imitated on loopback."""
    from cloudtrain.providers.aws.client import aws as connect

    connect.cache_clear()
    with without("AWS_"), Cloud() as cloud:
        cloud.client("s3").put_object(
            Bucket=cloud.bucket, Key=f"input/{GREETING_FILE}", Body=GREETING.encode()
        )
        cloud.client("secretsmanager").create_secret(Name="token", SecretString=SECRET)
        yield Platform(
            provider="aws",
            env=cloud.environment(),
            input=f"s3://{cloud.bucket}/input/",
            secret="secretsmanager:token",
        )
    assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)
    connect.cache_clear()


@contextmanager
def azure(folder: Path) -> Iterator[Platform]:
    """Azure ML, imitated on loopback."""
    from tests.providers.azure.jobs import forget

    forget()
    with without("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_"), AzureCloud() as cloud:
        cloud.put(f"input/{GREETING_FILE}", GREETING.encode())
        cloud.account.secrets["token"] = SECRET
        yield Platform(
            provider="azure",
            job={"image": IMAGE},
            env=cloud.environment(),
            input="azureml://datastores/workspaceblobstore/paths/input/",
            secret=f"keyvault:{cloud.vault}/secrets/token",
        )
    assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
