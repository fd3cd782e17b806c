"""For `CommandLine.modules`: importing this imports the SDKs of both clouds, which then try again
at once.

It submits to imitated clouds, for the modules that are imported where they are first needed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

NO_PAUSE = {
    "botocore.retries.standard": ("ExponentialBackoff", "delay_amount"),
    "azure.core.pipeline.policies": ("RetryPolicy", "get_backoff_time"),
    "azure.storage.blob._shared.policies": ("ExponentialRetry", "get_backoff_time"),
}
"""Functions that tell the SDKs how long to wait before a retry."""
ROOT = str(Path(__file__).resolve().parents[2])
JOB = "name: warm\nentrypoint: train.py\nlimits: {max_runtime: 1 h}\n"


def submit_to_both() -> None:
    """Submit one job to each cloud, and forget the connections."""
    from tests.fakes.aws.cloud import Cloud
    from tests.fakes.azure.cloud import IMAGE, AzureCloud
    from tests.providers.azure.operations import forget
    from tests.support.in_process import call

    before = dict(os.environ)
    folder_before = Path.cwd()
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory() as home,
        Cloud(phase_seconds=3600) as aws,
        AzureCloud(phase_seconds=3600) as azure,
    ):
        os.chdir(folder)
        os.environ.update(aws.environment() | azure.environment(), HOME=home)
        Path("train.py").touch()
        for provider, more in {"aws": "", "azure": f"image: {IMAGE}\n"}.items():
            Path("job.yaml").write_text(JOB + more)
            result = call("submit", "--provider", provider, "--detach")
            assert result.code == 0, result.err
        os.chdir(folder_before)
    os.environ.clear()
    os.environ.update(before)
    forget()
    import_module("cloudtrain.providers.aws.client").aws.cache_clear()


for module, (owner, method) in NO_PAUSE.items():
    setattr(getattr(import_module(module), owner), method, lambda *_: 0.01)
sys.path.insert(1, ROOT)
submit_to_both()
sys.path.remove(ROOT)
